"""Gradients agree with PyTorch's: of inputs and parameters, first and second, in float64 by gradcheck."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from convoy.program import Program
from convoy.region import gradients
from test_compile import BLOCKS, Net


def close(got, want):
    for g, w in zip(got, want, strict=True):
        assert (g is None) == (w is None)
        if g is not None:
            scale = w.abs().max().item()
            torch.testing.assert_close(g, w, rtol=1e-4, atol=2e-5 * scale + 1e-7)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name):
    arguments, shape = BLOCKS[name]
    torch.manual_seed(0)
    model = importlib.import_module(name).Model(*arguments)
    fast = convoy.compile(copy.deepcopy(model))
    x = torch.randn(shape)
    weight = None
    found = []
    for module in (fast, model):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        weight = torch.randn_like(y) if weight is None else weight
        (y * weight).sum().backward()
        found.append([leaf.grad, *(p.grad for p in module.parameters())])
    close(*found)


def test_training_goes_the_same_way():
    torch.manual_seed(0)
    nets = [Net().train() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    models = [convoy.compile(nets[0]), nets[1]]
    steps = [torch.optim.SGD(m.parameters(), 0.1) for m in models]
    data = torch.randn(6, 4, 3, 9, 7)
    for x in data:
        losses = []
        for model, step in zip(models, steps):
            torch.manual_seed(7)
            step.zero_grad()
            loss = F.cross_entropy(model(x), torch.tensor([0, 1, 2, 3]))
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-4
    for a, b in zip(models[0].buffers(), models[1].buffers()):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


class Reference(torch.autograd.Function):
    """The backward of a region with a forward that float64 can take."""

    @staticmethod
    def forward(ctx, program, *tensors):
        ctx.program = program
        ctx.save_for_backward(*tensors)
        return tuple(r.clone() for r in program.evaluate(tensors))

    @staticmethod
    def backward(ctx, *grads):
        return None, *gradients(ctx.program, ctx.saved_tensors, ctx.needs_input_grad[1:], grads)


def test_gradcheck_in_float64():
    program = Program()
    x, w, b, g, h = (program.source(i > 0) for i in range(5))
    c = program.emit("conv2d", x, w, b, out_channels=4, kernel_size=3, padding=1)
    n = program.emit("group_norm", c, g, h, num_groups=2)
    r = program.emit("add", program.emit("hardswish", program.emit("tanh", n)), c)
    program.outputs = [program.emit("logsumexp", r, dim=[1], keepdim=True), c]
    torch.manual_seed(0)
    tensors = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in
               [(2, 2, 4, 3), (4, 2, 3, 3), (4,), (4,), (4,)]]  # fmt: skip
    assert torch.autograd.gradcheck(lambda *t: Reference.apply(program, *t), tensors)
    assert torch.autograd.gradgradcheck(lambda *t: Reference.apply(program, *t), tensors)


def test_only_what_is_needed():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU())
    net[0].weight.requires_grad_(False)
    fast = convoy.compile(net)
    x = torch.randn(1, 3, 6, 6)
    fast(x).sum().backward()
    assert net[0].weight.grad is None and net[0].bias.grad is not None
    net.requires_grad_(False)
    assert not fast(x).requires_grad


def test_the_same_tensor_twice():
    class Twice(nn.Module):
        def forward(self, x, y):
            return torch.tanh(x * y) + y.square()

    x = torch.randn(3, 4, requires_grad=True)
    got = torch.autograd.grad(convoy.compile(Twice())(x, x).sum(), x)
    want = torch.autograd.grad(Twice()(x, x).sum(), x)
    close(got, want)


def test_second_derivatives():
    net = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Tanh())
    found = []
    for module in (convoy.compile(net), net):
        torch.manual_seed(0)
        x = torch.randn(1, 2, 7, requires_grad=True)
        (grad,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), [x, *net.parameters()]))
    close(*found)


def test_inference_saves_nothing():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU())
    fast = convoy.compile(net)
    with torch.no_grad():
        assert fast(torch.randn(1, 3, 6, 6)).grad_fn is None
