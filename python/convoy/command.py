"""The convoy command: problem files and reports here, everything else by the C program."""

import os
import subprocess
import sys

from .binding import candidates

MORE = """
With Python and PyTorch:
  bench FILE.py    check the model of a problem file, and time it against eager PyTorch and torch.compile
  eject FILE.py    write the model and its CUDA kernels to one file that does not need Convoy
  report           draw benchmark results as one page
"""

BENCH = """
With a problem file, convoy bench FILE.py takes
  --device auto|cpu|cuda, --precision fp32|tf32|torch, --threads N, --json
  --seconds S      seconds to time each of eager PyTorch, torch.compile and Convoy (default 2)
  --no-compile     leave torch.compile out
"""


def program():
    """The C program, installed or built next to the library."""
    found = [p.with_name("convoy") for p in candidates() if p.with_name("convoy").exists()]
    if not found:
        sys.exit("convoy: the C program is missing; run make, or pip install .")
    return str(found[0])


def helped(path, arguments):
    """The C program's help, then ours. It is not an error if the reader (head) stops early."""
    status = subprocess.run([path, *arguments]).returncode
    try:
        sys.stdout.write(BENCH if arguments[0] == "bench" else MORE)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to flush at the end
    return max(status, 0)


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["bench"] and any(a.endswith(".py") for a in arguments[1:]):
        try:
            from .problem import bench
        except ModuleNotFoundError as error:
            print(f"convoy: a problem file needs PyTorch ({error})", file=sys.stderr)
            return 2
        return bench(arguments[1:])
    if arguments[:1] == ["eject"]:
        try:
            from .eject import eject
        except ModuleNotFoundError as error:
            print(f"convoy: a problem file needs PyTorch ({error})", file=sys.stderr)
            return 2
        return eject(arguments[1:])
    if arguments[:1] == ["report"]:
        from convoy_report import main as report

        return report(arguments[1:])
    path = program()
    if arguments[:1] in (["--help"], ["-h"]) or arguments[:1] == ["bench"] and {"--help", "-h"} & set(arguments):
        return helped(path, arguments)
    os.execv(path, ["convoy", *arguments])


if __name__ == "__main__":
    sys.exit(main())
