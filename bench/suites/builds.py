#!/usr/bin/env python3
"""Two builds of Convoy side by side: do they give the same bits, and do they take the same time?

    bench/suites/builds.py OLD/build/convoy build/convoy [CHAIN ...] [--device cuda] [--precision tf32] [--dtype bf16]

For a change that must change nothing. Every chain (default: blocks A, B and C) is run by both commands on the same
random input and parameters, and the results are compared byte by byte. Then each is timed in turn, old and new, round
after round in this one run; the ratio is that of the least median of each. Exit status 1: some bits differ, or the new build
takes more than --within percent longer.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

BLOCKS = {"A": (128, 8, 128, 128), "B": (128, 8, 128, 128), "C": (128, 8, 256, 256)}


def shape_of(chain):
    return BLOCKS[chain] if chain in BLOCKS else tuple(int(n) for n in re.match(r"\s*\w+\[([\d,]*)\]", chain).group(1).split(","))


def write_input(path, shape, dtype):
    x = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    if dtype == "bf16":  # the upper half of a float, as words
        np.save(path, (x.view(np.uint32) >> 16).astype(np.uint16))
    else:
        np.save(path, x.astype(np.float16) if dtype == "fp16" else x)


def call(command, *arguments):
    done = subprocess.run([command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command} {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def digest(command, chain, options, folder):
    out = os.path.join(folder, "y.npy")
    call(command, "run", chain, "--seed", "1", "--input", os.path.join(folder, "x.npy"), "--output", out, *options)
    with open(out, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def milliseconds(command, chain, options, repeat):
    return json.loads(call(command, "bench", chain, "--json", "--samples", "1", "--repeat", str(repeat), *options))["ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("chains", nargs="*", default=list(BLOCKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--rounds", type=int, default=3, help="0: bits alone")
    parser.add_argument("--repeat", type=int, default=5, help="runs of a round")
    parser.add_argument("--within", type=float, default=2.0, help="percent")
    given = parser.parse_args()
    options = ["--device", given.device, "--precision", given.precision]
    options += ["--dtype", given.dtype] if given.dtype != "fp32" else []
    bad = 0
    for chain in given.chains:
        with tempfile.TemporaryDirectory() as folder:
            write_input(os.path.join(folder, "x.npy"), shape_of(chain), given.dtype)
            found = [digest(command, chain, options, folder) for command in (given.old, given.new)]
        bad += found[0] != found[1]
        line = f"{chain}, {given.device}, {given.precision}, {given.dtype}: " + ("same bits" if found[0] == found[1] else "bits DIFFER")
        times = [[milliseconds(c, chain, options, given.repeat) for c in (given.old, given.new)] for _ in range(given.rounds)]
        if times:
            old, new = (min(t[i] for t in times) for i in range(2))
            bad += new > old * (1 + given.within / 100)
            line += f"; old {old:.4g} ms, new {new:.4g} ms, {100 * (new / old - 1):+.1f} %"
        print(line, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
