"""What nvcc shows the host compiler of a CUDA text: all of it but the bodies of device functions.

Members' initializers, constructors' lists and constant expressions remain. One that calls a device's function compiles
for the device, and with NVRTC, which knows no host; with nvcc it does not. Any C++ compiler finds that out here.
"""

import re
import subprocess
from pathlib import Path

NOTHING = ("__host__", "__device__", "__global__", "__shared__", "__constant__", "__grid_constant__", "__noinline__",
           "__launch_bounds__(...)", "__cluster_dims__(...)")  # fmt: skip
KEYWORDS = [*(f"-D{word}=" for word in NOTHING), "-D__forceinline__=inline"]


def end_of_block(text, start):
    """After the brace that closes the one at `start`; braces in strings (assembly) do not count."""
    depth = 0
    for found in re.finditer(r'"(?:\\.|[^"\\])*"|[{}]', text[start:]):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return start + found.end()
    raise ValueError("a block without an end")


def end_of_head(text, start):
    """Where a declaration's body, value or end begins."""
    depth, i = 0, start
    while depth or text[i] not in ";={":
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
    return i


def without_bodies(text):
    """A preprocessed text, device functions empty. Constants need the bodies of constexpr ones."""
    parts, at = [], 0
    for found in re.finditer(r"\b__(?:device|global)__\b", text):
        if found.start() < at:
            continue
        body = end_of_head(text, found.end())
        words = re.split(r"[;{}]", text[at : found.start()])[-1] + text[found.end() : body]
        if text[body] == "{" and "constexpr" not in words:
            parts += [text[at:body], "{}"]
            at = end_of_block(text, body)
    return "".join([*parts, text[at:]])


def errors(text, compiler):
    """What the host compiler says of it, with the toolkit's headers as this folder has them."""
    flags = [compiler, "-std=c++17", "-x", "c++"]
    read = [*flags, "-E", "-P", f"-I{Path(__file__).parent}", "-"]
    plain = subprocess.run(read, input=text, capture_output=True, text=True, check=True).stdout
    check = [*flags, "-fsyntax-only", "-w", *KEYWORDS, "-"]
    done = subprocess.run(check, input=without_bodies(plain), capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if "error" in line]
