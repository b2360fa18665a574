"""Half precision after the first call: modules that are converted, engines that refuse, exported programs."""

import pytest
import torch
from torch import nn

import convoy
from agree import assert_agrees, regions
from test_half import Basic, assert_as_good, check, double, dtype, engine  # noqa: F401


@torch.no_grad()
def test_a_module_that_is_converted_later(engine):
    module, x = Basic().eval(), torch.randn(2, 8, 6, 6)
    fast = convoy.compile(module)
    assert_agrees(fast, module, x)
    for convert in (fast.half, module.float, module.bfloat16, fast.float, lambda: fast.to(torch.float16)):
        convert()
        dtype = module.conv1.weight.dtype
        assert_agrees(fast, module, x) if dtype == torch.float32 else check(module, x.to(dtype), compiled=fast)
        assert regions(fast) == 1
    with pytest.raises(RuntimeError, match="type"):  # PyTorch's own
        fast(x)


@torch.no_grad()
def test_an_operator_before_a_region_changes_its_dtype(engine):
    """The region itself has no parameter that would show it."""

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 8)

        def forward(self, i):
            return (self.table(i) * 2).exp()

    module, i = Embedded(), torch.arange(10)
    fast = convoy.compile(module)
    fast(i)
    module.bfloat16()
    assert fast(i).dtype == torch.bfloat16
    torch.testing.assert_close(fast(i), module(i), rtol=0.02, atol=0)


@torch.no_grad()
def test_an_engine_that_refuses(monkeypatch):
    """The reason is the library's own, and PyTorch computes."""
    monkeypatch.setattr("convoy.engine.DTYPES", {"float32": 0, "float16": 1, "bfloat16": 99})
    module, x = Basic().eval().bfloat16(), torch.randn(2, 8, 6, 6).bfloat16()
    fast = convoy.compile(module)
    assert torch.equal(fast(x), module(x))
    assert not list(fast._convoy.entries.values())[-1].runners


def test_exported(engine, dtype):
    module, x = Basic().eval().to(dtype), torch.randn(2, 8, 6, 6).to(dtype)
    program = torch.export.export(convoy.compile(module), (x,))
    assert "convoy.program" in str(program.graph)
    with torch.no_grad():
        assert_as_good(program.module()(x), module(x), double(module)(x.double()))
