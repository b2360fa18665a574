"""Half precision: modules and tensors in fp16 and bf16, parameters of another dtype, autocast, conversions.

Results are compared with PyTorch in float64 on the same halves: the error is at most PyTorch's own plus half a unit in the
last place of the result's dtype.
"""

import copy
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, assert_near, kept, regions
from convoy import converted
from convoy.backend import compile_graph
from convoy.engine import ConvoyError, Graph, Plan
from convoy.settings import Settings

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}
SMALLEST = {torch.float16: -24, torch.bfloat16: -133, torch.float32: -149}  # exponents of the smallest numbers
OPTIONS = Settings.options


def refusal(device, dtype):
    """Why an engine does not take a dtype; None if it does."""
    graph = Graph()
    graph.output(graph.apply("relu", [graph.source("x", (4,), False, dtype)], {}))
    try:
        Plan(graph, device)
    except ConvoyError as error:
        return str(error)


@pytest.fixture(params=["ref", "cpu"])
def engine(request, monkeypatch):
    if request.param == "cpu" and (reason := refusal("cpu", "bfloat16")):
        pytest.skip(reason)
    monkeypatch.setattr(Settings, "options", lambda *a: {**OPTIONS(*a), "device": request.param})
    return request.param


@pytest.fixture(params=HALVES)
def dtype(request):
    return HALVES[request.param]


def half_ulp(values, dtype):
    exponent = torch.frexp(values)[1].clamp(min=SMALLEST[dtype] + DIGITS[dtype])  # values: 0.5 to 1 times 2**exponent
    return torch.ldexp(torch.ones_like(values), exponent - DIGITS[dtype] - 1)


def assert_as_good(got, eager, truth, unit=None):
    """unit: the dtype that values were rounded to, where it is not that of the result."""
    assert got.dtype == eager.dtype and got.shape == eager.shape and got.stride() == eager.stride()
    assert torch.equal(got.isnan(), eager.isnan())
    finite = eager.isfinite() & truth.isfinite()
    own = (eager.double() - truth)[finite].abs().amax() if finite.any() else 0.0
    error = (got.double() - truth).abs() - half_ulp(truth, unit or got.dtype)
    worst = error[finite].amax().item() if finite.any() else 0.0
    assert worst <= own, f"{worst:.3g} and half a unit, PyTorch's own {own:.3g}"


def double(module):
    return copy.deepcopy(module).double()


@torch.no_grad()
def check(module, *inputs, compiled=None):
    fast = compiled or convoy.compile(module)
    got, truth = fast(*inputs), double(module)(*(x.double() for x in inputs))
    try:
        eager = module(*inputs)
    except NotImplementedError:  # PyTorch has no such kernel
        eager = truth.to(got.dtype)
    assert_as_good(got, eager, truth)
    assert torch.equal(fast(*inputs), got), "other bits in the next call"
    return fast


# ---- every operator ----------------------------------------------------------------------------------------------


class Call(nn.Module):
    """A function of x and of parameters, with something after it."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.tensors = nn.ParameterList([torch.rand(s) + 0.25 for s in shapes])

    def forward(self, x):
        return self.function(x, *self.tensors) * 0.5


IMAGE, ROWS = (2, 4, 9, 7), (3, 5, 8)
NUMBERS = (4, 5, 6)
PLAIN = {
    name: (NUMBERS, getattr(F, name, None) or getattr(torch, name))
    for name in "relu relu6 elu selu gelu silu mish sigmoid hardsigmoid tanh hardtanh hardswish softplus exp log sqrt "
    "rsqrt neg abs square erf celu logsigmoid leaky_relu".split()
}
WITH_NUMBERS = {
    "clamp": (NUMBERS, lambda x: x.clamp(0.2, 0.7)),
    "add": (NUMBERS, lambda x: x + 0.3),
    "rsub": (NUMBERS, lambda x: 1 - x),
    "alpha": (NUMBERS, lambda x, y: torch.add(x, y, alpha=0.3), (5, 6)),
    "sub": (NUMBERS, lambda x, y: x - y, (6,)),
    "mul": (NUMBERS, lambda x, y: x * y, (5, 1)),
    "div": (NUMBERS, lambda x, y: x / y, (5, 6)),
    "maximum": (NUMBERS, lambda x, y: torch.maximum(x, y), (5, 6)),
    "minimum": (NUMBERS, lambda x, y: torch.minimum(x, y), (5, 6)),
    "pow": (NUMBERS, lambda x: x**2),
}
PRODUCTS = {
    "linear": (ROWS, F.linear, (6, 8), (6,)),
    "matmul": (ROWS, torch.matmul, (8, 4)),
    "addmm": ((5, 8), lambda x, b, w: torch.addmm(b, x, w), (4,), (8, 4)),
    **{f"conv{n}d": ((2, 4, *(7,) * n), getattr(F, f"conv{n}d"), (6, 4, *(3,) * n), (6,)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": ((2, 4, *(5,) * n), getattr(F, f"conv_transpose{n}d"), (4, 6, *(3,) * n), (6,))
       for n in (1, 2, 3)},
    "depthwise": (IMAGE, lambda x, w: F.conv2d(x, w, padding=1, groups=4), (4, 1, 3, 3)),
}  # fmt: skip
NORMS = {
    "group_norm": (IMAGE, lambda x, w, b: F.group_norm(x, 2, w, b), (4,), (4,)),
    "batch_norm": (IMAGE, lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), (4,), (4,), (4,), (4,)),
    "instance_norm": (IMAGE, lambda x, w, b: F.instance_norm(x, None, None, w, b), (4,), (4,)),
    "layer_norm": (ROWS, lambda x, w, b: F.layer_norm(x, (8,), w, b), (8,), (8,)),
    "rms_norm": (ROWS, lambda x, w: F.rms_norm(x, (8,), w), (8,)),
}
POOLS = {
    f"{kind}_pool{n}d": ((2, 4, *(6,) * n), lambda x, size=size, f=getattr(F, f"{kind}_pool{n}d"): f(x, size))
    for kind, size in (("max", 3), ("avg", 3), ("adaptive_avg", 1))
    for n in (1, 2, 3)
}
REDUCTIONS = {
    "sum": (ROWS, lambda x: x.sum(-1)),
    "mean": (ROWS, lambda x: x.mean((0, 2), keepdim=True)),
    "max": (ROWS, lambda x: x.max(1).values),
    "amin": (ROWS, lambda x: x.amin(1)),
    "all": (ROWS, lambda x: x.mean()),
    "logsumexp": (ROWS, lambda x: x.logsumexp(1)),
    "softmax": (ROWS, lambda x: x.softmax(-1)),
    "log_softmax": (ROWS, lambda x: x.log_softmax(1)),
}
SHAPES = {
    "reshape": (ROWS, lambda x: x.exp().reshape(5, 24)),
    "flatten": (ROWS, lambda x: x.exp().flatten(1)),
    "squeeze": ((3, 1, 5), lambda x: x.exp().squeeze(1)),
    "unsqueeze": (ROWS, lambda x: x.exp().unsqueeze(1)),
}
MOVES = {
    "cat": (ROWS, lambda x: torch.cat([x.exp(), x], 1)),
    "slice": (ROWS, lambda x: x.exp()[:, 1:4:2]),
    "permute": (ROWS, lambda x: x.exp().permute(2, 0, 1)),
    "flip": (ROWS, lambda x: x.exp().flip(0, 2)),
    "expand": ((3, 1, 5), lambda x: x.exp().expand(3, 4, 5)),
    "pad": (ROWS, lambda x: F.pad(x.exp(), (1, 2, 0, 1), value=0.5)),
    "interpolate": (IMAGE, lambda x: F.interpolate(x.exp(), scale_factor=2)),
}
OPERATORS = {**PLAIN, **WITH_NUMBERS, **PRODUCTS, **NORMS, **POOLS, **REDUCTIONS, **SHAPES, **MOVES}


def test_every_operator_is_there():
    missing = set(convoy.operators()) - set(OPERATORS)
    assert missing == {"min", "softsign", "dropout", "cast"}  # amin, several in PyTorch, nothing outside training, below


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(engine, dtype, name):
    shape, function, *shapes = OPERATORS[name]
    module = Call(function, *shapes).to(dtype)
    fast = check(module, (torch.rand(shape) + 0.1).to(dtype))
    assert regions(fast) == 1 and not kept(fast)


@pytest.mark.parametrize("name", NORMS)
def test_norms_with_float32_parameters(engine, dtype, name):
    """Where PyTorch takes them: their results have the data's dtype then."""
    shape, function, *shapes = OPERATORS[name]
    module, x = Call(function, *shapes), torch.rand(shape).to(dtype)
    with torch.no_grad():
        try:
            same = module(x).dtype == dtype
        except RuntimeError as error:
            pytest.skip(str(error).splitlines()[0])
    fast = check(module, x)
    assert regions(fast) == (1 if same else 0)
    assert same or "gives" in str(list(fast._convoy.entries.values())[-1].capture.kept)


# ---- blocks and networks -----------------------------------------------------------------------------------------

BLOCKS = {
    "block_a": ((8, 64, 3, 16, (64, 1, 1), 4, 0, 1), (2, 8, 30, 37)),
    "block_b": ((8, 64, 3, 16, 1e-5), (2, 8, 21, 18)),
    "block_c": ((8, 32, 3, 8, (32, 1, 1), (32, 1, 1)), (2, 8, 19, 22)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block(engine, dtype, name):
    arguments, shape = BLOCKS[name]
    module = importlib.import_module(name).Model(*arguments).to(dtype)
    fast = check(module, torch.rand(shape).to(dtype))
    assert regions(fast) == 1 and not kept(fast)


class Basic(nn.Module):
    """A ResNet's basic block."""

    def __init__(self, c=8):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        for bn in (self.bn1, self.bn2):
            bn.running_mean.uniform_(-0.5, 0.5)
            bn.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + x)


class Residual(nn.Module):
    """A UNet's residual block."""

    def __init__(self, c=8):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, c), nn.Conv2d(c, 2 * c, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(4, 2 * c), nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.skip = nn.Conv2d(c, 2 * c, 1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


def mlp():
    return nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24), nn.Softmax(-1))


NETWORKS = {"basic": (Basic, (2, 8, 9, 10)), "residual": (Residual, (2, 8, 9, 10)), "mlp": (mlp, (7, 24))}


@pytest.mark.parametrize("name", NETWORKS)
def test_network_in_half(engine, dtype, name):
    make, shape = NETWORKS[name]
    fast = check(make().eval().to(dtype), torch.randn(shape).to(dtype))
    assert regions(fast) == 1 and not kept(fast)


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_network_under_autocast(engine, dtype, name):
    make, shape = NETWORKS[name]
    module, x = make().eval(), torch.randn(shape)
    fast = convoy.compile(module)
    with torch.autocast("cpu", dtype=dtype):
        got, eager = fast(x), module(x)
        assert torch.equal(fast(x), got)
    assert regions(fast) == 1 and all("_to_copy" in k for k in kept(fast))  # of parameters
    assert_as_good(got, eager, double(module)(x.double()), dtype)
    assert_agrees(fast, module, x)  # without autocast it is another call


@torch.no_grad()
@pytest.mark.parametrize("block", "abc")
def test_block_under_autocast_is_one_pass(dtype, block):
    """Conversions are part of the region, and of the pass that reads or writes what they convert."""
    example, x = importlib.import_module(f"examples.block_{block}"), torch.rand(2, 8, 20, 24)
    fast = convoy.compile(module := example.Model(*example.get_init_inputs()).eval())
    with torch.autocast("cpu", dtype=dtype):
        got, eager = fast(x), module(x)
    assert_as_good(got, eager, double(module)(x.double()), dtype)
    (runner,) = list(fast._convoy.entries.values())[-1].runners
    assert runner.plan.cost().passes == 1


@torch.no_grad()
def test_operators_of_two_dtypes(engine, dtype):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Parameter(torch.rand(5, 1)), nn.Parameter(torch.rand(5, 1).to(dtype))

        def forward(self, x, y):
            z = torch.tanh(x) * self.wide + torch.relu(y)
            return z - self.narrow, (y * self.narrow).to(dtype) + x, x.float().sum(1)

    module, inputs = Mixed(), (torch.randn(4, 5, 6).to(dtype), torch.randn(4, 5, 6))
    fast = convoy.compile(module)
    for got, eager, want in zip(fast(*inputs), module(*inputs), double(module)(*(t.double() for t in inputs))):
        assert_as_good(got, eager, want, dtype)
    assert regions(fast) >= 1 and not kept(fast)


# ---- autocast ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_autocast_states_share_nothing(engine):
    module, x = Basic().eval(), torch.randn(2, 8, 6, 6)
    fast, found = convoy.compile(module), []
    for state in [dict(enabled=False), dict(dtype=torch.bfloat16), dict(dtype=torch.float16)] * 2:
        with torch.autocast("cpu", **state):
            got, eager = fast(x), module(x)
        assert got.dtype == eager.dtype
        if "dtype" in state:
            assert_as_good(got, eager, double(module)(x.double()), state["dtype"])
        else:
            assert_near(got, eager, double(module)(x.double()))
        found.append(got)
    assert len(fast._convoy.entries) == 3
    assert all(torch.equal(a, b) for a, b in zip(found[:3], found[3:]))
    assert not any(torch.equal(found[i], found[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@torch.no_grad()
def test_converted_parameters_are_kept_until_they_change(engine):
    module, x = Basic().eval(), torch.randn(2, 8, 6, 6)
    fast = convoy.compile(module)
    for change in (lambda w: None, lambda w: w.mul_(2), lambda w: w.data.add_(1), lambda w: w.copy_(-w)):
        change(module.conv1.weight)
        with torch.autocast("cpu", dtype=torch.bfloat16):  # in one context PyTorch would go on with what it converted
            got, eager = fast(x), module(x)
            assert torch.equal(fast(x), got)
        assert_as_good(got, eager, double(module)(x.double()), torch.bfloat16)
    graph = list(fast._convoy.entries.values())[-1].capture.graph.graph
    names = [getattr(n.target, "__name__", "") for n in graph.nodes]
    assert names.count("convoy_converted") == 2 and regions(fast) >= 1


@torch.no_grad()
def test_captured_graphs_convert_by_themselves(monkeypatch):
    """What is kept would not change when a CUDA graph is replayed. Here a stream and its capture are pretended."""
    weight = nn.Parameter(torch.rand(5, 6))
    convert = converted.Converted(weight, torch.bfloat16)
    monkeypatch.setattr(convert, "stream", lambda: 7)
    monkeypatch.setattr(converted, "capturing", lambda device: False)
    kept = convert(weight)
    assert convert(weight) is kept and torch.equal(kept, weight.bfloat16())
    monkeypatch.setattr(converted, "capturing", lambda device: True)
    assert convert(weight) is not kept and torch.equal(convert(weight), kept)
    monkeypatch.setattr(converted, "capturing", lambda device: False)
    version = kept._version
    weight.mul_(2)
    assert convert(weight) is kept and kept._version > version and torch.equal(kept, weight.bfloat16())
    monkeypatch.setattr(convert, "stream", lambda: 8)
    assert convert(weight) is not kept
    weight.data = weight.data.half()
    assert torch.equal(convert(weight), weight.bfloat16())


@torch.no_grad()
def test_refresh_converts_again(engine):
    """Of large parameters the beginning is compared: what is changed elsewhere, through .data, has to be told."""
    module, x = nn.Sequential(nn.Linear(128, 256), nn.ReLU()), torch.rand(3, 128)
    fast, cast = convoy.compile(module), torch.autocast("cpu", dtype=torch.bfloat16)
    with cast:
        before = fast(x)
    module[0].weight.data[-1] = 1
    convoy.refresh(fast)
    with cast:
        after, eager = fast(x), module(x)
    assert torch.equal(after[:, :-1], before[:, :-1]) and not torch.equal(after, before)
    assert_as_good(after, eager, double(module)(x.double()), torch.bfloat16)


@torch.no_grad()
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_in_place_beside_a_wider_tensor(engine, context):
    """The result has the dtype of the tensor that is changed, where the plain operator would widen it."""

    class Shortcut(Basic):
        def forward(self, x):
            y = self.bn1(self.conv1(x))
            y += x
            return self.bn2(self.conv2(F.relu_(y) * torch.tensor(2.0)))

    module, x = Shortcut().eval(), torch.randn(2, 8, 6, 6)
    fast = convoy.compile(module)
    with context(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, eager = fast(x), module(x)
        assert torch.equal(fast(x), got)
    assert regions(fast) == 2 and any("add_" in k for k in kept(fast))
    assert_as_good(got, eager, double(module)(x.double()), torch.bfloat16)


@torch.no_grad()
def test_autocast_inside_a_forward(engine):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = F.relu(self.first(x))
                with torch.autocast("cpu", enabled=False):
                    z = F.relu(self.second(y.float()))
            return y, z

    module, x = Inside(), torch.randn(5, 8)
    fast = convoy.compile(module)
    exact = double(module)
    truth = F.relu(exact.first(x.double()))
    for got, eager, wanted in zip(fast(x), module(x), (truth, F.relu(exact.second(truth)))):
        assert_as_good(got, eager, wanted, torch.bfloat16)
    assert regions(fast) == 2


@torch.no_grad()
def test_conversions_join_regions(engine):
    class Mixed(nn.Module):
        def forward(self, x):
            return (x * 2).exp().float().sum(-1).add(1).to(torch.bfloat16).mul(2).exp()

    x = torch.rand(4, 6).bfloat16()
    fast = convoy.compile(Mixed())
    got, eager = fast(x), Mixed()(x)
    assert got.dtype == eager.dtype == torch.bfloat16
    assert regions(fast) == 1 and not kept(fast)
    assert_as_good(got, eager, (x.double() * 2).exp().sum(-1).add(1).mul(2).exp())


def test_torch_compile_under_autocast(engine):
    module, x = Basic().eval(), torch.randn(2, 8, 6, 6)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, eager = torch.compile(module, backend=compile_graph)(x), module(x)
    assert_as_good(got, eager, double(module)(x.double()), torch.bfloat16)


@pytest.mark.parametrize("training", ["recompute", "eager"])
def test_gradients(engine, dtype, training):
    for autocast in (False, True):
        module, x = Residual(), torch.randn(2, 8, 5, 5)
        if not autocast:
            module, x = module.to(dtype), x.to(dtype)
        twin, fast = copy.deepcopy(module), None
        fast = convoy.compile(module, training=training)
        for each in (twin, fast):
            with torch.autocast("cpu", dtype=dtype, enabled=autocast):
                each(x).float().square().mean().backward()
        for ours, theirs in zip(module.parameters(), twin.parameters()):
            assert ours.grad.dtype == theirs.grad.dtype
            size = theirs.grad.float().norm()
            assert (ours.grad.float() - theirs.grad.float()).norm() <= 2.0 ** (4 - DIGITS[dtype]) * size
