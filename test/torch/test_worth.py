"""What is left to PyTorch because Convoy would not speed it up, and that the rest is computed as before."""

import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, kept, regions
from convoy import building, capture, module, passing, partition, work, worth
from convoy.rates import RATES, Rate
from random_modules import Plain, assert_chain_agrees, make


class Net(nn.Module):
    """Two convolutions with a reduction of everything between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        y = F.relu(self.first(x))
        return self.second(y * y.mean()).tanh()


X = torch.randn(2, 3, 12, 11, generator=torch.Generator().manual_seed(3))


def decide(monkeypatch, taken):
    """Lets `taken(kinds)` decide on every region, by the kinds of its operators."""
    asked = []

    def judge(region, runner, settings):
        kinds = [w.kind for w in map(work.work_of, region.nodes) if w is not None]
        asked.append(kinds)
        return worth.Verdict(1e-3 if taken(kinds) else 5e-3, 2e-3)

    monkeypatch.setattr(building, "judge", judge)
    return asked


# ---- the choice --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_region_that_is_worth_it_is_taken_whole(monkeypatch):
    asked = decide(monkeypatch, lambda kinds: True)
    net = Net()
    fast = convoy.compile(net)
    assert_agrees(fast, net, X)
    assert regions(fast) == 1 and kept(fast) == [] and len(asked) == 1


@torch.no_grad()
def test_what_is_not_worth_it_is_cut_out(monkeypatch):
    decide(monkeypatch, lambda kinds: "reduce_all" not in kinds)
    net = Net()
    fast = convoy.compile(net)
    assert_agrees(fast, net, X)
    assert regions(fast) == 2 and "aten.mean.default" in kept(fast)


@torch.no_grad()
def test_pieces_next_to_each_other_are_joined_where_that_is_worth_it(monkeypatch):
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.LogSoftmax(1)).eval()
    decide(monkeypatch, lambda kinds: "softmax_columns" not in kinds)
    fast = convoy.compile(net)
    assert_agrees(fast, net, X)
    assert regions(fast) == 1 and kept(fast) == ["aten.log_softmax.int"]
    decide(monkeypatch, lambda kinds: "softmax_columns" not in kinds and len(kinds) < 3)
    fast = convoy.compile(net)
    assert_agrees(fast, net, X)
    assert regions(fast) == 3


@torch.no_grad()
def test_nothing_worth_it_is_the_module_itself(monkeypatch):
    decide(monkeypatch, lambda kinds: False)
    net = Net()
    fast = convoy.compile(net)
    assert torch.equal(fast(X), net(X)) and torch.equal(fast(X), net(X))
    text = str(convoy.explain(fast, X))
    assert text.count("PyTorch is predicted to take 2 ms, Convoy 5 ms (the plan's prediction, corrected)") == 3 and "0 regions" in text  # a line for each piece


@pytest.mark.parametrize("seed", range(40))
@torch.no_grad()
def test_any_choice_gives_the_same_results(monkeypatch, seed):
    """Whatever is refused, pieces never wait for each other in a circle."""
    dice = random.Random(seed)
    decide(monkeypatch, lambda kinds: len(kinds) < 4 and dice.random() < 0.6)
    chain, shape = make(Plain(seed))
    assert_chain_agrees(convoy.compile(chain), chain, torch.randn(shape))


def test_pieces_hold_every_node_once_and_read_backwards_only():
    net = Net().requires_grad_(False)
    graph, _ = capture.trace(lambda params, given: net(*given), [], [X], "fake")
    nodes = [n for n in graph.graph.nodes if n.op == "call_function" and n.name != "detach"]
    parts = partition.pieces(nodes)
    assert sorted(n.name for p in parts for n in p) == sorted(n.name for n in nodes)
    place = {n: i for i, p in enumerate(parts) for n in p}
    assert all(place[s] <= place[n] for n in nodes for s in n.all_input_nodes if s in place)
    assert all(sum(map(partition.is_heavy, p)) <= 1 for p in parts) and len(parts) == 3


# ---- calls that pass ---------------------------------------------------------------------------------------------


@torch.no_grad()
def test_calls_pass_by_shape_and_mode(monkeypatch):
    asked = decide(monkeypatch, lambda kinds: False)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    fast = convoy.compile(net)
    fast(X)
    before = len(asked)
    assert fast(X).shape == (2, 4, 10, 9) and len(asked) == before and fast._convoy.passing.keys
    fast(torch.randn(1, 3, 7, 7))
    assert len(asked) > before
    before = len(asked)
    fast.train()
    fast(X)
    assert len(asked) > before, "another mode is another call"
    convoy.refresh(fast)
    assert not fast._convoy.passing.keys


@torch.no_grad()
def test_behind_many_calls_that_pass_some_go_without_a_look(monkeypatch):
    asked = decide(monkeypatch, lambda kinds: False)
    net = Net()
    fast, other = convoy.compile(net), X[:1]
    for _ in range(passing.IN_A_ROW + 1):
        fast(X)
    before = len(asked)
    for _ in range(passing.FREE):
        assert torch.equal(fast(other), net(other))
    assert len(asked) == before
    fast(other)
    assert len(asked) > before
    for _ in range(passing.IN_A_ROW + 1):
        fast(X)
    assert fast._convoy.passing.free
    fast.to(torch.float32)
    assert not fast._convoy.passing.free and not fast._convoy.passing.keys, "a conversion is looked at again"


@torch.no_grad()
def test_an_error_of_the_module_is_raised_once(monkeypatch):
    decide(monkeypatch, lambda kinds: False)
    calls = []

    class Fails(nn.Module):
        broken = False

        def forward(self, x):
            if self.broken:
                calls.append(1)
                raise AttributeError("of the module")
            return torch.softmax(x, -1)

    fast = convoy.compile(Fails())
    fast(X)
    Fails.broken = True
    with pytest.raises(AttributeError, match="of the module"):
        fast(X)
    assert calls == [1]


# ---- predictions and measurements --------------------------------------------------------------------------------


def works(function, *tensors):
    graph, _ = capture.trace(lambda params, given: function(*given), [], list(tensors), "fake")
    found = [work.work_of(n) for n in graph.graph.nodes if n.op == "call_function"]
    return [w for w in found if w is not None]


def test_work_of_operators():
    a, b, image = torch.zeros(8, 32), torch.zeros(32, 16), torch.zeros(2, 6, 10, 10)
    cases = [
        (works(torch.relu, a), "pointwise", 4 * 512, 0),
        (works(torch.matmul, a, b), "gemm", 4 * (256 + 512 + 128), 2 * 8 * 32 * 16),
        (works(lambda x: x.T @ x, a), "gemm_strided", None, 2 * 32 * 32 * 8),
        (works(torch.mv, a, a[0]), "matvec", None, 2 * 8 * 32),
        (works(torch.bmm, torch.zeros(3, 4, 5), torch.zeros(3, 5, 6)), "bmm", None, 2 * 3 * 4 * 5 * 6),
        (works(lambda x: F.conv2d(x, torch.zeros(12, 6, 3, 3)), image), "conv_few", None, 2 * 2 * 12 * 64 * 54),
        (works(lambda x: F.conv2d(x, torch.zeros(99, 6, 3, 3)), image), "conv", None, 2 * 2 * 99 * 64 * 54),
        (works(lambda x: F.conv2d(x, torch.zeros(12, 6, 3, 3), stride=2), image), "conv_strided", None, 2 * 2 * 12 * 16 * 54),
        (works(lambda x: F.linear(x.T, torch.zeros(5, 8)), a), "linear_strided", None, 2 * 32 * 8 * 5),
        (works(lambda x: F.conv2d(x, torch.zeros(6, 1, 3, 3), groups=6), image), "conv_depthwise", None, 2 * 2 * 6 * 64 * 9),
        (works(lambda x: F.conv_transpose2d(x, torch.zeros(6, 4, 2, 2), stride=2), image), "conv_transpose", None, 2 * 1200 * 16),
        (works(lambda x: x.mean(), a), "reduce_all", 4 * 257, 0),
        (works(lambda x: x.sum(0), a), "reduce_columns", None, 0),
        (works(lambda x: x.sum((2, 3)), image), "reduce_rows", None, 0),
        (works(lambda x: F.max_pool2d(x, 2), image), "pool_max", None, 2 * 6 * 25 * 4),
    ]
    for found, kind, nbytes, flops in cases:
        last = found[-1]
        assert last.kind == kind and last.flops == flops
        assert nbytes is None or last.bytes == nbytes
    assert works(lambda x: x.view(4, 64), a) == []


def test_every_device_has_rates():
    assert list(RATES) == ["cpu", "cpu half", "cuda", "cuda tf32", "cuda half"]
    assert all(set(r["convoy"]) <= set(r["eager"]) for r in RATES.values())  # what is taken was measured in PyTorch


@pytest.mark.parametrize("device", RATES)
def test_predictions_grow_with_the_work(device):
    rates = RATES[device]
    model = worth.Model(rates, rates["peak"], rates["bandwidth"])
    for kind, rate in rates["eager"].items():
        assert min(rate.start, rate.small, rate.large) > 0
        small, large = (model.eager(work.Work(kind, 1e5 * k, 1e6 * k, 1e4 * k)) for k in (1, 100))
        assert 0 < small < large, kind
        twice = worth.Model(rates, 2 * rates["peak"], 2 * rates["bandwidth"])
        assert twice.eager(work.Work(kind, 1e9, 1e12, 1e7)) < model.eager(work.Work(kind, 1e9, 1e12, 1e7))


def test_half_precision_counts_its_bytes_and_has_rates_of_its_own():
    a, b = (works(lambda x: (x @ x).relu(), torch.zeros(64, 64, dtype=d)) for d in (torch.float32, torch.bfloat16))
    for single, half in zip(a, b, strict=True):
        assert (half.bytes, half.flops, half.half, single.half) == (single.bytes / 2, single.flops, True, False)
    for device, single in (("cpu", "cpu"), ("cuda", "cuda tf32")):
        assert worth.rates_of(torch.device(device), True) is RATES[f"{device} half"]
        assert RATES[f"{device} half"]["eager"]["conv"].flops > RATES[single]["eager"]["conv"].flops


@pytest.mark.parametrize("device, times", [("cpu", 40), ("cuda", 1)])
def test_passes_that_fit_the_cache_one_by_one_come_from_the_cache(device, times):
    """On the CPU, whose rates were fitted so: a network is not one operator that reads all of its weights at once."""
    rates = {**RATES[device], "bandwidth": 1.0, "peak": 1.0}
    rates["convoy"] = {"conv": Rate(0, 1e-6, 1e10, 1e8, 1, 1, 1)}
    model, conv = worth.Model(rates, 1.0, 1.0), [work.Work("conv", 1e6, 1e9, 1e4)]
    one, many = (SimpleNamespace(seconds=1.0, bytes=n * rates["cache"], bandwidth=n * rates["cache"], passes=n) for n in (1, 40))
    ours = [model.ours(conv, cost)[0] - cost.passes * 1e-6 for cost in (one, many)]
    beyond = (39 if times == 1 else 0) * rates["cache"] / 1e8
    assert ours[1] == pytest.approx(times * ours[0] + beyond)


@torch.no_grad()
def test_a_kind_that_was_never_measured_is_pytorchs(monkeypatch):
    net = nn.Sequential(nn.Conv2d(8, 64, 3), nn.GroupNorm(16, 64), nn.MaxPool2d(4), nn.Hardtanh(0, 1)).eval()
    known = {k: v for k, v in RATES["cpu"]["convoy"].items() if k != "pool_max"}
    monkeypatch.setitem(RATES, "cpu", {**RATES["cpu"], "convoy": known})
    fast = convoy.compile(net, regions="faster")
    assert_agrees(fast, net, torch.randn(4, 8, 96, 96))
    assert "aten.max_pool2d.default" in kept(fast)
    assert "an operator whose speed in PyTorch is not known" in str(convoy.explain(fast, torch.randn(4, 8, 96, 96)))


@torch.no_grad()
def test_large_chains_are_taken_and_single_reductions_are_not():
    """What no machine disputes."""
    chain = nn.Sequential(nn.Conv2d(8, 64, 3), nn.GroupNorm(16, 64), nn.MaxPool2d(4), nn.Hardtanh(0, 1)).eval()
    fast = convoy.compile(chain, regions="faster")
    fast(torch.randn(4, 8, 96, 96))
    assert regions(fast) == 1
    tiny = convoy.compile(nn.Sequential(nn.ReLU(), nn.Sigmoid()), regions="faster")
    tiny(torch.randn(4))
    assert regions(tiny) == 0


@torch.no_grad()
def test_measure_times_both_once(monkeypatch, tmp_path):
    found, compare = [], worth.compare
    monkeypatch.setenv("CVY_CACHE", str(tmp_path))  # an earlier run may have measured it
    monkeypatch.setattr(worth, "REMEMBERED", {})
    monkeypatch.setattr(worth, "compare", lambda runner: found.append(compare(runner)) or found[-1])
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    for _ in range(2):
        fast = convoy.compile(net, effort="measure", regions="faster")
        assert_agrees(fast, net, X)
    assert len(found) == 1 and found[0].measured and found[0].ours > 0 and found[0].theirs > 0
    assert regions(fast) == found[0].taken()


def test_settings():
    with pytest.raises(ValueError, match="regions takes faster, all"):
        convoy.compile(nn.ReLU(), regions="some")


# ---- odd operators, and what deciding must not touch ---------------------------------------------------------------


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("function, shape", [
    (lambda x: (x @ x).relu(), (5, 5)),  # one tensor, twice an operand
    (lambda x: torch.tanh(x.sum(0)), ()),  # a reduction of no dimension
    (lambda x: torch.bmm(x, x).relu(), (0, 4, 4)),  # no batch
    (lambda x: torch.baddbmm(x, x, x).relu(), (2, 3, 3)),
])  # fmt: skip
@torch.no_grad()
def test_every_operator_has_a_prediction(function, shape):
    x = torch.rand(shape)
    model = Function(function)
    fast = convoy.compile(model)
    assert_agrees(fast, model, x)
    entry = next(iter(module.dispatcher_of(fast).entries.values()))
    assert entry.reason is None or not entry.reason.startswith("not captured"), entry.reason


@torch.no_grad()
def test_measuring_takes_expanded_inputs_and_leaves_random_numbers_alone():
    model = Function(lambda x: torch.tanh(x) * 2)
    fast = convoy.compile(model, effort="measure")
    x = torch.rand(1, 700).expand(300, 700)
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    assert_agrees(fast, model, x)
    assert torch.equal(torch.rand(3), expected)
    entry = next(iter(module.dispatcher_of(fast).entries.values()))
    assert entry.reason is None or not entry.reason.startswith("not captured"), entry.reason
