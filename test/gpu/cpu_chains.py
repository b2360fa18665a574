"""cpu_chains.py: the chains that the tests of the CPU engine run, one in a line, for `chains -c`: every case of
test/python/cases.py, and the texts of test/unit/test_cpu_engine.c."""

import re
import sys
from pathlib import Path

TEST = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TEST / "python"))

from cases import CASES  # noqa: E402


def literals(text):
    """Chains among a C file's strings; those that go on with a macro are its blocks."""
    blocks = dict(re.findall(r'#define (BLOCK_\w) +"(.*)"', text))
    for chain, block in re.findall(r'"(x\d?\[[^"]*\| [^"]*)"(?: (BLOCK_\w))?', text):
        if "%" not in chain:
            yield chain + blocks.get(block, "")


def main():
    engine = (TEST / "unit" / "test_cpu_engine.c").read_text()
    found = [chain for cases in CASES.values() for chain in cases] + list(literals(engine))
    print("\n".join(dict.fromkeys(found)))


if __name__ == "__main__":
    main()
