"""Random modules in fp16 and bf16: over some inputs, the error against float64 is no larger than PyTorch's.

A single largest error is chance: of two sums of roundings either may be the larger one. So the errors of several inputs are
squared and summed; of few numbers that is still chance, by 1 / sqrt(their number). Results that PyTorch has to the last bit may be
off by a unit of their dtype's rounding. CONVOY_HALF_MODULES is the number of modules.
"""

import copy
import os

import pytest
import torch
from torch.utils._pytree import tree_leaves

import convoy
import random_modules

MODULES, INPUTS = int(os.environ.get("CONVOY_HALF_MODULES", "16")), 8
UNIT = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
NOISE = 2.0**-22  # of the largest values: what float32's own rounding may be amplified from, by a norm of equal values


def squares(tensors):
    return torch.stack([t.square().sum() for t in tensors])


def errors(module, shape, dtype):
    """Sums over the inputs, for every output: squared errors of Convoy and of PyTorch, of what rounding a result does, and
    of what little noise on the way does to it; its elements."""
    half, fast = copy.deepcopy(module).to(dtype), convoy.compile(copy.deepcopy(module).to(dtype), regions="all")
    exact, noisy = copy.deepcopy(half).double(), copy.deepcopy(half).double()
    noisy.noise = NOISE
    total = 0
    for _ in range(INPUTS):
        x = torch.randn(shape).to(dtype)
        want, moved = tree_leaves(exact(x.double())), tree_leaves(noisy(x.double()))
        ours, theirs = ([g.double() - w for g, w in zip(tree_leaves(run(x.clone())), want)] for run in (fast, half))
        if not all(torch.isfinite(t).all() for t in [*want, *theirs]):
            return None
        slack = [8 * (m - w) for m, w in zip(moved, want)]
        every = ours, theirs, [UNIT[dtype] * w for w in want], slack, [torch.ones_like(w) for w in want]
        total = total + torch.stack([squares(t) for t in every])
    return total


@torch.no_grad()
@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("seed", range(MODULES))
def test_random_module_is_as_close_to_float64(seed, dtype):
    module, shape = random_modules.make(random_modules.Plain(seed))
    torch.manual_seed(seed)
    try:
        found = errors(module, shape, dtype)
    except NotImplementedError as error:  # PyTorch has no such kernel on the CPU
        pytest.skip(str(error))
    if found is None:
        pytest.skip("PyTorch's result is not finite")
    ours, theirs, rounded, noise, count = found.sqrt()
    assert (ours <= (1.1 + 3 / count) * theirs + rounded + noise).all(), (ours, theirs, rounded, noise)
