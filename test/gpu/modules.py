"""modules.py [COUNT [SEED]] [--device cuda|cpu] [--jobs N]: random PyTorch modules (test/torch/random_modules.py), compiled
and compared with PyTorch in float64 on the same device. Needs PyTorch alone.

COUNT (default 200) modules are shared out among N processes, since kernels are compiled for each. In fp32, twice on each
input: the second time on what the first run prepared. The last line is the sum; exit status 1: one disagrees.
"""

import argparse
import multiprocessing
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "torch")]


def check(task):
    """(seed, regions of Convoy in the module, what is wrong or None)"""
    seed, device = task
    import torch

    import convoy
    from agree import regions
    from random_modules import LAYOUTS, Plain, assert_chain_agrees, make

    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        pick = Plain(seed)
        module, shape = make(pick)
        module = module.to(device)
        x = pick.one(LAYOUTS)(torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device))
        fast = convoy.compile(module)
        with torch.no_grad():
            assert_chain_agrees(fast, module, x)
            assert_chain_agrees(fast, module, x)
        return seed, regions(fast), None
    except Exception:
        return seed, 0, traceback.format_exc()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200, metavar="COUNT")
    parser.add_argument("seed", type=int, nargs="?", default=1, metavar="SEED", help="of the first module")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=min(10, os.cpu_count() or 1))
    options = parser.parse_args()
    tasks = [(options.seed + i, options.device) for i in range(options.count)]
    bad, taken = 0, 0
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed, regions, wrong in pool.map(check, tasks):
            taken += regions > 0
            bad += wrong is not None
            if wrong:
                print(f"module {seed}:\n{wrong}", flush=True)
    print(f"{options.count} modules on {options.device}, {taken} of them with regions of Convoy, {bad} failed")
    return 1 if bad or not taken else 0


if __name__ == "__main__":
    sys.exit(main())
