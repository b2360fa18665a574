"""What a call may depend on besides shapes and dtypes: conjugation, layout, PyTorch's modes, cached parametrizations."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import convoy
from convoy.backend import compile_graph


class Parts(nn.Module):
    def forward(self, z):
        return torch.sigmoid(z.real * 2 + 1) * z.imag.relu()


class Activation(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 * 1.5


class PlusHalf(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2 + torch.tensor([0.5])


class Asks(nn.Module):
    def forward(self, x):
        y = torch.relu(x) * 2 + 1
        return -y if torch.is_inference_mode_enabled() else y


class HoldsSparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("eye", torch.eye(4).to_sparse())

    def forward(self, x):
        return (torch.relu(self.eye) * 2 * 3).to_dense() + x


def compiled(module):
    return convoy.compile(module, regions="all")


@pytest.mark.parametrize("make", [compiled, lambda m: torch.compile(m, backend=compile_graph, dynamic=False)])
def test_conjugated_arguments(make):
    module, z = Parts(), torch.randn(3, 4, dtype=torch.complex64)
    fast = make(module)
    for given in (z, z.conj(), z, z.conj().resolve_conj(), z.conj().T):
        torch.testing.assert_close(fast(given), module(given))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch._mkldnn])
def test_arguments_that_are_not_strided(layout):
    module, x = Activation(), torch.rand(4, 4)
    fast = compiled(module)
    other = x.to_mkldnn() if layout == torch._mkldnn else x.to_sparse(layout=layout)
    for given in (x, other, x, other):
        got, want = fast(given), module(given)
        assert got.layout == want.layout
        torch.testing.assert_close(got.to_dense(), want.to_dense())


def test_nested_arguments():
    module, x = Activation(), torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)])
    for got, want in zip(compiled(module)(x).unbind(), module(x).unbind()):
        torch.testing.assert_close(got, want)


def test_sparse_values_in_the_middle():
    module, x = HoldsSparse(), torch.rand(4, 4)
    fast = compiled(module)
    for _ in range(2):
        torch.testing.assert_close(fast(x), module(x))


def test_default_dtype():
    module, x = PlusHalf(), torch.rand(3, 4)
    fast = compiled(module)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            torch.testing.assert_close(fast(x), module(x))
        finally:
            torch.set_default_dtype(torch.float32)


def test_inference_mode_is_asked_for():
    module, x = Asks(), torch.rand(3, 4)
    fast = compiled(module)
    for around in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.inference_mode):
        for _ in range(3):
            with around():
                torch.testing.assert_close(fast(x), module(x))


@pytest.mark.parametrize("first", ["compiled", "original"])
def test_cached_parametrizations(first):
    module, x = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 4)), torch.rand(3, 6)
    fast = compiled(module)
    with torch.no_grad():
        with parametrize.cached():
            for called in (fast, module, fast, module) if first == "compiled" else (module, fast, module, fast):
                got = called(x)
                assert type(got) is torch.Tensor and type(module[0].weight) is torch.Tensor
        module[0].parametrizations.weight.original0.mul_(3)
        torch.testing.assert_close(fast(x), module(x))


class Switches(nn.Module):
    """Fails on fake tensors while gradients are disabled."""

    def forward(self, x):
        y = torch.relu(x) * 2 * 1.5
        torch.set_grad_enabled(False)
        total = float(y.sum().numpy())
        torch.set_grad_enabled(True)
        return y * total


def test_a_trace_that_fails_leaves_gradients_enabled():
    x = torch.rand(3, 4, requires_grad=True)
    assert compiled(Switches())(x).requires_grad and torch.is_grad_enabled()
