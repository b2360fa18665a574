"""PyTorch's own sample inputs for the operators of the vocabulary: agree, or are refused with a reason."""

import sys
import types
import unittest

import pytest
import torch
import torch.nn.functional as F
from torch import nn

try:
    import expecttest  # noqa: F401
except ModuleNotFoundError:  # PyTorch's test helpers derive a class from it that is not used here
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
from torch.testing._internal.common_methods_invocations import op_db

from torch.utils._pytree import tree_map

import convoy
from agree import assert_near, double

# Names of OpInfo entries by operator of the vocabulary, where they differ.
NAMES = {
    "conv1d": "nn.functional.conv1d", "conv2d": "nn.functional.conv2d", "conv3d": "nn.functional.conv3d",
    "sum": "sum", "mean": "mean", "logsumexp": "logsumexp", "softmax": "softmax", "log_softmax": "log_softmax",
    "max": "amax", "min": "amin", "reshape": "reshape", "flatten": "flatten", "squeeze": "squeeze",
    "matmul": "matmul", "unsqueeze": "unsqueeze", "add": "add", "sub": "sub", "mul": "mul", "div": "div",
}  # fmt: skip
MOST = 25  # samples of each
OPERATORS = sorted(convoy.operators())


def infos(name):
    wanted = {name, f"nn.functional.{name}", NAMES.get(name, name)}
    variants = ("", "no_rounding_mode", "constant", "nearest")
    return [o for o in op_db if o.name in wanted and torch.float32 in o.dtypes and o.variant_test_name in variants]


class Call(nn.Module):
    """One operator as a module, with something after it, so that the region is worth taking."""

    def __init__(self, op, args, kwargs):
        super().__init__()
        self.op, self.args, self.kwargs = op, args, kwargs

    def forward(self, x):
        y = self.op(x, *self.args, **self.kwargs)
        first = y if isinstance(y, torch.Tensor) else y[0]
        return torch.tanh(first * 0.5) if first.dtype in (torch.float32, torch.float64) else first


def copied(given):
    """A tensor, or what cat takes."""
    return tree_map(torch.clone, given)


@pytest.mark.parametrize("name", OPERATORS)
def test_samples(name):
    found = infos(name)
    if not found:
        pytest.skip("PyTorch has no samples of it")
    torch.manual_seed(0)
    samples = [(o, s) for o in found for s in o.sample_inputs("cpu", torch.float32)][:MOST]
    taken = 0
    for info, sample in samples:
        op = F.dropout if name == "dropout" else info.op  # PyTorch's own version sets the seed, which is no operator
        module = Call(op, sample.args, sample.kwargs)
        exact = Call(op, double(sample.args), double(sample.kwargs))
        fast = convoy.compile(module)
        with torch.no_grad():
            torch.manual_seed(1)
            want = module(copied(sample.input))
            torch.manual_seed(1)
            got = fast(copied(sample.input))
            torch.manual_seed(1)
            truth = exact(double(sample.input))
        entry = list(fast._convoy.entries.values())[-1] if fast._convoy.entries else None
        taken += bool(entry and entry.runners)
        if entry and entry.capture is not None:
            assert all(entry.capture.kept.values())  # a reason for each
        # dropout draws other numbers in float64
        assert_near(got, want, want.double() if name == "dropout" else truth)
    assert taken or name == "dropout", "none of the samples was taken"
