"""pip install .: builds the library and the C program with make and puts both into the package."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = Path(__file__).resolve().parent
VERSION = re.search(r'define CVY_VERSION +"(.+)"', (ROOT / "include" / "convoy.h").read_text())[1]
FOLDER = "build-wheel"  # of make


class Build(build_py):
    def run(self):
        super().run()
        subprocess.run(["make", f"-j{os.cpu_count() or 1}", f"BUILD={FOLDER}", "all"], cwd=ROOT, check=True)
        target = Path(self.build_lib) / "convoy" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        for name in ("libconvoy.so", "convoy"):
            shutil.copy2(ROOT / FOLDER / name, target / name)


class Wheel(bdist_wheel):
    """The library is the platform's, but no part of it is any Python's."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=VERSION,
    packages=["convoy", "convoy_report"],
    package_dir={"": "python"},
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    distclass=Binary,
    options={"build": {"build_base": "build-python"}},
)
