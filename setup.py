"""pip install . (or make wheel): builds the library and the C program with make and puts both, stripped, into the package.

CONVOY_CROSS=aarch64-linux-gnu- builds for another machine by a cross compiler; CONVOY_BUILD is make's folder.
"""

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
CROSS = os.environ.get("CONVOY_CROSS", "")
MACHINE = f"-{CROSS.split('-')[0]}" if CROSS else ""
FOLDER = os.environ.get("CONVOY_BUILD", "build-wheel" + MACHINE)  # of make
FILES = ("libconvoy.so", "convoy")


class Build(build_py):
    def run(self):
        super().run()
        cross = [f"CROSS={CROSS}"] if CROSS else []
        subprocess.run(["make", f"-j{os.cpu_count() or 1}", f"BUILD={FOLDER}", *cross, "all"], cwd=ROOT, check=True)
        target = Path(self.build_lib) / "convoy" / "lib"
        target.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            shutil.copy2(ROOT / FOLDER / name, target / name)
            if shutil.which(CROSS + "strip"):
                subprocess.run([CROSS + "strip", "--strip-unneeded", target / name], check=True)


def manylinux():
    """The oldest C library that has every symbol which the files need: "manylinux_2_34"; None where that cannot be told."""
    needed = []
    for name in FILES:
        try:
            table = subprocess.run([CROSS + "objdump", "-T", ROOT / FOLDER / name], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        needed += [tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", table.stdout)]
    return "manylinux_{}_{}".format(*max(needed, default=(2, 17))) if needed else None


class Wheel(bdist_wheel):
    """The library is the platform's, but no part of it is any Python's."""

    def get_tag(self):
        usual, oldest = super().get_tag()[2], manylinux()
        machine = CROSS.split("-")[0] or usual.split("_", 1)[1]
        return "py3", "none", f"{oldest}_{machine}" if oldest and usual.startswith("linux") else usual


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(
    version=VERSION,
    packages=["convoy", "convoy_report"],
    package_dir={"": "python"},
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    distclass=Binary,
    options={"build": {"build_base": "build-python" + MACHINE}},
)
