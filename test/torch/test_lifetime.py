"""What a compiled module and its results keep alive, and what they are: memory goes when the last user goes, results are
tensors of their own."""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import convoy
from convoy import memory


def block():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()).eval()


WAYS = {
    "one region": (block, lambda: torch.randn(2, 3, 9, 9)),
    "several regions": (lambda: nn.Sequential(block(), nn.Unfold(2), nn.Linear(36, 4), nn.Sigmoid()).eval(),
                        lambda: torch.randn(2, 3, 9, 9)),
    "nothing": (lambda: nn.Sequential(nn.Unfold(2)), lambda: torch.randn(2, 3, 9, 9)),
}  # fmt: skip


@pytest.mark.parametrize("gradients", (False, True), ids=("without gradients", "with gradients"))
@pytest.mark.parametrize("make, given", WAYS.values(), ids=WAYS)
def test_modules_die_with_their_last_reference(make, given, gradients):
    """No cycle: neither the module nor its parameters wait for a garbage collection."""
    convoy.compile(make())(given())  # what PyTorch imports at the first trace leaves such cycles once
    gc.collect()
    gc.disable()
    try:
        model = make()
        fast = convoy.compile(model)
        with torch.set_grad_enabled(gradients):
            for _ in range(3):
                y = fast(given())
        del y
        module, parameters = weakref.ref(fast), [weakref.ref(p) for p in model.parameters()]
        del model, fast
        assert module() is None
        assert all(p() is None for p in parameters)
    finally:
        gc.enable()


@pytest.fixture
def large(monkeypatch):
    """Everything comes from the pool."""
    monkeypatch.setattr(memory, "SMALLEST", 1)


USES = {
    "in place": lambda y: y.mul_(2),
    "in place, part of it": lambda y: y[0].add_(1),
    "in place operator": lambda y: torch.relu_(y),
    "view and change": lambda y: y.view(-1).sub_(1),
    "out": lambda y: torch.add(y.detach().clone(), 1, out=y),
    "copied": lambda y: y.copy_(torch.ones_like(y)),
    "resized": lambda y: y.resize_(2, 2),
    "set": lambda y: y.set_(torch.ones(3)),
    "transposed": lambda y: y.transpose_(0, 1),
    "shared": lambda y: y.share_memory_(),
    "numpy": lambda y: torch.from_numpy(y.numpy()),
    "pickled": lambda y: pickle.loads(pickle.dumps(y)),
    "copy of": lambda y: copy.deepcopy(y),
    "data": lambda y: setattr(y, "data", y.data + 1) or y,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@torch.no_grad()
def test_pooled_results_are_tensors_like_others(use, large):
    model = block()
    x = torch.randn(2, 3, 9, 9)
    got, want = convoy.compile(model)(x), model(x)
    assert (got._is_view(), got._base, got._version) == (want._is_view(), want._base, want._version)
    torch.testing.assert_close(use(got), use(want))


def test_pooled_results_change_in_place_with_gradients(large):
    """Autograd refuses in-place operators on views that a function gave."""
    model = block()[:2]
    fast, x = convoy.compile(model, training="recompute"), torch.randn(2, 3, 9, 9)
    losses = []
    for call in (fast, model):
        model.zero_grad()
        call(x).mul_(2).add_(1).sum().backward()
        losses.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*losses)


@torch.no_grad()
def test_further_shapes_keep_no_graph():
    """Their code is enough, and PyTorch's memory of operators on fake tensors does not grow."""
    model = nn.Sequential(block(), nn.Unfold(2), nn.Linear(36, 4), nn.Sigmoid()).eval()
    fast, grown = convoy.compile(model), []
    for n in (1, 2, 3, 2, 1):
        x = torch.randn(n, 3, 9, 9)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
        grown.append(FakeTensorMode.cache_info().size)
    first, *others = fast._convoy.entries.values()
    assert len(others) == 2 and first.capture.graph.graph is not None
    assert all(e.capture.graph._graph is None and e.runners for e in others)
    assert {n.name for n in others[0].capture.kept} == {n.name for n in first.capture.kept}
    assert set(grown) == {0}
    assert "im2col" in str(convoy.explain(fast, torch.randn(2, 3, 9, 9)))


# ---- pickling ----------------------------------------------------------------------------------------------------


class Leaves(nn.Module):
    """Leaves something out when it is pickled, and makes it again."""

    def __init__(self):
        super().__init__()
        self.layer, self.cache = nn.Linear(4, 4), lambda: 1  # a lambda cannot be pickled

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["cache"]
        return state

    def __setstate__(self, state):
        super().__setstate__(state)
        self.cache = "made again"

    def forward(self, x):
        return torch.relu(self.layer(x) + 1)


class Reduces(nn.Module):
    """Says itself how it is made again."""

    def __init__(self, size):
        super().__init__()
        self.size, self.layer, self.lock = size, nn.Linear(size, size), lambda: 1

    def __reduce__(self):
        return made, (self.size, self.state_dict())

    def forward(self, x):
        return torch.relu(self.layer(x) + 1)


def made(size, state):
    module = Reduces(size)
    module.load_state_dict(state)
    return module


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {"pickle": lambda m: pickle.loads(pickle.dumps(m)), "deepcopy": copy.deepcopy, "copy": copy.copy, "save": saved}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("make", (Leaves, lambda: Reduces(4), block), ids=("getstate", "reduce", "plain"))
def test_copies_are_made_as_the_class_says(make, again):
    model = make()
    fast = convoy.compile(model, winograd=False)
    x = torch.randn(2, 3, 9, 9) if isinstance(model, nn.Sequential) else torch.randn(3, 4)
    with torch.no_grad():
        want = fast(x)
        copied = again(fast)
        assert type(copied) is type(fast) and copied._convoy.settings == fast._convoy.settings
        torch.testing.assert_close(copied(x), want)
    if make is Leaves:
        assert copied.cache == "made again"


def test_a_module_that_holds_itself_can_be_copied():
    model = block()
    fast = convoy.compile(model)
    fast.me = [fast]
    copied = copy.deepcopy(fast)
    assert copied.me[0] is copied and copied is not fast


class Cycle:
    def __init__(self):
        self.me = self


NOTED = []  # by Untidy: is the collector on, and what it has left


class Untidy(nn.Module):
    def forward(self, x):
        NOTED.append((gc.isenabled(), weakref.ref(Cycle())))
        return x.relu() * 2


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
def test_what_a_trace_leaves_is_collected_at_once(on):
    """The collector rests during a trace, and then takes what the trace has left. If it was off it stays off, and takes nothing."""
    NOTED.clear()
    if not on:
        gc.disable()
    try:
        with torch.no_grad():
            convoy.compile(Untidy())(torch.rand(2, 3))
        ((during, left),) = NOTED
        assert not during and gc.isenabled() == on and (left() is None) == on
    finally:
        gc.enable()
