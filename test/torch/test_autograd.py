"""Gradients agree with PyTorch's: of inputs and parameters, first and second, in float64 by gradcheck."""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import convoy
from convoy.program import Program
from convoy.region import gradients
from small_net import Net
from test_compile import BLOCKS


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


# ---- who computes a region that needs gradients -------------------------------------------------------------------


@pytest.fixture
def runs(monkeypatch):
    """Grows by one with every run of a plan."""
    found = []
    for name in ("_run", "_repeat"):

        def watched(*given, run=getattr(convoy.region, name)):
            status = run(*given)
            if not status:  # what cannot be repeated is run
                found.append(given)
            return status

        monkeypatch.setattr(convoy.region, name, watched)
    return found


def block(**options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 5, 3), nn.GroupNorm(1, 5), nn.ReLU(inplace=True))
    return net, convoy.compile(net, **options)


def counted(runs, call):
    before = len(runs)
    return call(), len(runs) - before


def gradients_of(net, y):
    return torch.autograd.grad(y.square().sum(), list(net.parameters()))


BY_CONVOY = {"auto": (1, 1, 1, 0, 0), "eager": (0,) * 5, "recompute": (1,) * 5}


@pytest.mark.parametrize("training", BY_CONVOY)
def test_regions_with_gradients_go_where_they_cost_least(runs, training):
    """auto: a call without no_grad() is Convoy's as long as no backward comes; then PyTorch's."""
    net, fast = block(training=training)
    x = torch.randn(2, 3, 9, 9)
    want = gradients_of(net, net(x))
    for expected, backward in zip(BY_CONVOY[training], (False, False, True, True, True), strict=True):
        y, by_convoy = counted(runs, lambda: fast(x))
        assert by_convoy == expected
        torch.testing.assert_close(y, net(x), rtol=1e-5, atol=1e-5)
        if backward:
            close(gradients_of(net, y), want)
        with torch.no_grad():
            y, by_convoy = counted(runs, lambda: fast(x))
        assert by_convoy == 1 and y.grad_fn is None


def test_recompute_keeps_inputs_alone():
    net, fast = block(training="recompute")
    x = torch.randn(2, 3, 9, 9)
    fast(x)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        fast(x)
    assert sorted(saved) == sorted(t.data_ptr() for t in [x, *net.parameters()])


def test_frozen_regions_stay_with_convoy(runs):
    """Batch norm on batch statistics is PyTorch's and parts two regions; the one before it is frozen."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3), nn.SiLU())
    net[0].requires_grad_(False)
    fast = convoy.compile(net)
    x = torch.randn(2, 3, 9, 9)
    trained = [p for p in net.parameters() if p.requires_grad]
    want = torch.autograd.grad(net(x).square().sum(), trained)
    for expected in (2, 1, 1):
        y, by_convoy = counted(runs, lambda: fast(x))
        assert by_convoy == expected
        close(torch.autograd.grad(y.square().sum(), trained), want)
    net[0].requires_grad_(True)  # has never been trained: this time by Convoy
    assert counted(runs, lambda: fast(x).sum().backward())[1] == 1
    assert counted(runs, lambda: fast(x).sum().backward())[1] == 0
    net.requires_grad_(False)
    assert counted(runs, lambda: fast(x))[1] == 2


def test_a_frozen_backbone_stays_with_convoy(runs):
    """Nothing parts it from the head: without gradients both are one region."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 5, 3), nn.SiLU())
    net[0].requires_grad_(False)
    fast, x, head = convoy.compile(net), torch.randn(2, 3, 9, 9), list(net[2].parameters())
    for expected in (2, 1, 1):
        want = torch.autograd.grad(net(x).square().sum(), head)
        y, by_convoy = counted(runs, lambda: fast(x))
        assert by_convoy == expected
        close(torch.autograd.grad(y.square().sum(), head), want)
        with torch.no_grad():
            for parameter in head:
                parameter.add_(0.1)
            assert counted(runs, lambda: fast(x))[1] == 1
    wanted = x.clone().requires_grad_()  # now the backbone is wanted too
    same = x.clone().requires_grad_()
    fast(wanted).square().sum().backward(), net(same).square().sum().backward()
    torch.testing.assert_close(wanted.grad, same.grad, rtol=1e-4, atol=1e-5)


def test_arithmetic_on_arguments_joins_what_is_trained(runs):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return torch.tanh(self.conv((x - 0.5) * 2))

    assert counted(runs, lambda: convoy.compile(Scaled())(torch.rand(2, 3, 9, 9)))[1] == 1


def test_no_grad_inside_a_model_that_is_trained(runs):
    class Guided(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU())
            self.student = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU())

        def forward(self, x):
            with torch.no_grad():
                wanted = self.teacher(x)
            return self.student(x) - wanted

    net = Guided()
    fast = convoy.compile(net)
    x = torch.randn(2, 3, 9, 9)
    want = torch.autograd.grad(net(x).square().sum(), list(net.student.parameters()))
    for _ in range(3):
        y = fast(x)
        close(torch.autograd.grad(y.square().sum(), list(net.student.parameters())), want)
        assert all(p.grad is None for p in net.teacher.parameters())


@pytest.mark.parametrize("training", ["auto", "recompute"])
def test_checkpointed_calls_are_made_again_alike(training):
    """Both forwards come before the first backward: what that changes must not reach the second one."""
    net, fast = block(training=training)
    a, b = torch.randn(2, 2, 3, 9, 9)
    fast(a)
    want = gradients_of(net, net(a) + net(b))
    for _ in range(2):
        both = [torch.utils.checkpoint.checkpoint(fast, x, use_reentrant=False) for x in (a, b)]
        close(gradients_of(net, both[0] + both[1]), want)


def test_inputs_of_a_frozen_model_in_eval():
    net, fast = block()
    net.eval().requires_grad_(False)
    x = torch.randn(1, 3, 9, 9, requires_grad=True)
    want = torch.autograd.grad(net(x).square().sum(), x)
    for _ in range(3):
        close(torch.autograd.grad(fast(x).square().sum(), x), want)


def test_training_option_is_checked():
    with pytest.raises(ValueError, match="training takes auto, eager, recompute, not 'never'"):
        convoy.compile(nn.ReLU(), training="never")


class Residual(nn.Module):
    """Adds a block's results to its input in place, which PyTorch's backward of the block does not need."""

    def __init__(self, change):
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Conv2d(4, 4, 1))
        self.change = change

    def forward(self, x):
        x = self.stem(x)
        return self.change(x, self.block(x), self.block)


def add_up(x, y, block):
    x += y
    return x


def change_weight(x, y, block):
    with torch.no_grad():
        block[2].weight.mul_(2)
    return y + x


@pytest.mark.parametrize("change", [add_up, change_weight])
def test_what_is_changed_after_a_block_has_read_it(change):
    torch.manual_seed(0)
    model, found = Residual(change), []
    for fast in (False, True):
        module, x = copy.deepcopy(model), torch.linspace(-1, 1, 150).view(2, 3, 5, 5)
        module.block = convoy.compile(module.block) if fast else module.block
        for _ in range(3):
            module.zero_grad()
            try:
                module(x).square().sum().backward()
            except RuntimeError as error:
                assert change is change_weight and "modified by an inplace operation" in str(error)
        found.append([p.grad for p in module.parameters()] if change is add_up else [])
    close(*found)
