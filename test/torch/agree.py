"""How near a compiled module must be to PyTorch in float64: eight times PyTorch's own float32 error, and some ulps."""

import copy

import torch
from torch.utils._pytree import tree_leaves, tree_map

EPS = 2.0**-24


def double(value):
    return tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, value)


def assert_near(got, single, truth, scale=None, slack=0.0):
    """got, single: float32 results of Convoy and of eager PyTorch; truth: float64; slack: allowed beyond the usual."""
    assert type(got) is type(single)
    assert got.shape == truth.shape and got.dtype == single.dtype
    if not got.is_floating_point():
        assert torch.equal(got, single)
        return
    finite = torch.isfinite(truth) & torch.isfinite(single)
    assert torch.equal(torch.isnan(got), torch.isnan(single))
    size = truth[finite].abs().max().item() if finite.any() else 0.0
    size = max(size, scale or 0.0)
    own = (single.double() - truth)[finite].abs().max().item() if finite.any() else 0.0
    error = (got.double() - truth)[finite].abs().max().item() if finite.any() else 0.0
    allowed = 8 * own + 32 * EPS * size + slack + 1e-30
    assert error <= allowed, f"error {error:.3g}, PyTorch's own {own:.3g}, values to {size:.3g}"


def assert_agrees(fast, module, *args, **kwargs):
    """fast and module: the compiled one and the original."""
    truth = copy.deepcopy(module).double()(*double(args), **double(kwargs))
    single, got = module(*args, **kwargs), fast(*args, **kwargs)
    singles, gots, truths = tree_leaves(single), tree_leaves(got), tree_leaves(truth)
    assert len(singles) == len(gots)
    for g, s, t in zip(gots, singles, truths):
        if isinstance(g, torch.Tensor):
            assert_near(g.detach(), s.detach(), t.detach())
        else:
            assert g == s
    return got


def regions(fast):
    """How many calls of Convoy the latest call of a compiled module makes."""
    return len(list(fast._convoy.entries.values())[-1].runners)


def kept(fast):
    """What stays in PyTorch: names of operators."""
    found = list(fast._convoy.entries.values())[-1]
    assert found.capture is not None, found.reason
    return sorted(str(n.target) for n in found.capture.kept)
