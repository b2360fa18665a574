"""A trace leaves a module and the world as they were, and a module that changes itself runs in PyTorch."""

import copy
from collections import OrderedDict, deque
from types import SimpleNamespace

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch._subclasses import FakeTensor

import convoy
import convoy.state
from agree import regions
from convoy import versions
from convoy.state import State, Unseen
from state_net import X, Net, last, last_reason, near

# ---- parts that are there twice ----------------------------------------------------------------------------------


def twice():
    made = Net()
    made.again = made.conv
    made.act2 = made.act
    return made


def tied():
    made = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    made[2].weight = made[0].weight
    made[2].register_buffer("same", made[0].weight.data)
    made.kept = [made[0].weight, (made[2], made)]  # and itself
    return made


def shared_buffer():
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()
    made[3].running_mean = made[1].running_mean
    made[3]._buffers = made[1]._buffers
    return made


def cyclic():
    made = Net()
    made.act.owner = [made, {"more": made}]
    made.table = {"conv": made.conv, "weights": [made.conv.weight, made.conv.bias]}
    made.table["itself"] = made.table
    return made


@pytest.mark.parametrize("make", [twice, tied, shared_buffer, cyclic])
def test_parts_that_are_there_twice(make):
    torch.manual_seed(0)
    model = make()
    before = State(model)
    twin = copy.deepcopy(model)
    fast = convoy.compile(model)
    for _ in range(3):
        near(fast(X), twin(X))
        assert before.difference() is None and before.unchanged()
    assert regions(fast) >= 1
    assert not any(isinstance(t, FakeTensor) for t in State(model).tensors.values())
    grads = []
    for module in (fast, twin):
        module(X).square().sum().backward()
        grads.append([p.grad for p in module.parameters()])
    near(*grads)


# ---- modules that change themselves ------------------------------------------------------------------------------


class Remembers(Net):
    def forward(self, x):
        self.h = torch.tanh(self.conv(x))
        return self.h * 2


class Recurrent(Net):
    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        y = torch.tanh(self.conv(x))
        self.h = y if self.h is None else y + 0.5 * self.h
        return self.h * 2


class Counts(Net):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class CountsForAll(Net):
    calls = 0

    def forward(self, x):
        CountsForAll.calls += 1
        return super().forward(x)


class AssignsBuffer(Net):
    def forward(self, x):
        self.seen = self.seen + 1
        return super().forward(x) * self.seen


class BufferInPlace(Net):
    def forward(self, x):
        self.seen += 1
        return super().forward(x) * self.seen


class BufferThroughAView(Net):
    def forward(self, x):
        self.seen.view(1)[0] += 1
        return super().forward(x) + self.seen


class TensorInPlace(Net):
    def __init__(self):
        super().__init__()
        self.total = torch.zeros(4, 1, 1)

    def forward(self, x):
        y = super().forward(x) + self.total
        self.total.add_(1)
        return y


class Grows(Net):
    def __init__(self):
        super().__init__()
        self.log, self.last, self.sizes = [], deque(maxlen=2), set()
        self.table, self.deep = {"n": {"calls": 0}}, SimpleNamespace(inner=[[0]])

    def forward(self, x):
        y = super().forward(x)
        self.log.append(y.shape)
        self.last.append(y)
        self.sizes.add(len(self.log))
        self.table["n"]["calls"] += 1
        self.deep.inner[0][0] += 1
        return y * len(self.log)


class Submodule(Net):
    def forward(self, x):
        self.act = nn.Sigmoid() if isinstance(self.act, nn.Tanh) else nn.Tanh()
        return super().forward(x)


class Deletes(Net):
    def __init__(self):
        super().__init__()
        self.once = 1.5

    def forward(self, x):
        y = super().forward(x) * self.__dict__.pop("once", 1.0)
        return y


class InHook(Net):
    def __init__(self):
        super().__init__()
        self.conv.register_forward_hook(self.keep)

    def keep(self, module, given, result):
        self.kept = result


CHANGING = {
    Remembers: "h", Recurrent: "h", Counts: "calls", CountsForAll: "CountsForAll.calls", AssignsBuffer: "seen",
    BufferInPlace: "seen", BufferThroughAView: "seen", TensorInPlace: "total", Grows: "", Submodule: "act", Deletes: "once",
}  # fmt: skip


def contents(model):
    """All that can be compared of what a module holds."""
    state = State(model)
    plain = [x for h in state.held if h.restored for x in h.before if isinstance(x, (bool, int, float, str, tuple))]
    return sorted(map(repr, plain)), sorted((t for t in state.tensors.values()), key=lambda t: (t.shape, t.sum().item()))


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("grad", [False, True])
def test_a_module_that_changes_itself(kind, grad):
    torch.manual_seed(0)
    model = kind()
    twin = copy.deepcopy(model)
    told = str(convoy.explain(model, X))
    assert f"its forward changes {CHANGING[kind]}" in told, told
    near(contents(model)[1], contents(twin)[1])
    assert "calls" not in vars(kind) or kind.calls == 0
    fast = convoy.compile(model)
    with torch.set_grad_enabled(grad):
        for i in range(12):
            at_class = getattr(kind, "calls", 0)
            got = fast(X + i)
            if kind is CountsForAll:
                assert kind.calls == at_class + 1
                kind.calls = at_class
            near(got, twin(X + i))
            if grad and i < 2 and kind is not Recurrent:
                got.sum().backward()
            assert not any(isinstance(t, FakeTensor) for t in State(model).tensors.values())
    mine, theirs = contents(model), contents(twin)
    if kind is not CountsForAll:
        assert mine[0] == theirs[0]
    near(mine[1], theirs[1])
    kind.calls = 0


def test_captures_of_a_changing_module_are_few(monkeypatch):
    made = []
    original = convoy.module.build_entry
    monkeypatch.setattr(convoy.module, "build_entry", lambda *a: made.append(0) or original(*a))
    fast = convoy.compile(Counts())
    with torch.no_grad():
        for i in range(400):
            fast(X if i % 2 else X[:1])
    assert len(made) <= 8


class LazyMask(Net):
    mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.linspace(0, 1, x.shape[-1] - 2)
        return super().forward(x) * self.mask


@torch.no_grad()
def test_what_is_made_at_the_first_call_does_not_stand_in_the_way():
    model = LazyMask()
    fast = convoy.compile(model)
    for _ in range(3):
        near(fast(X), copy.deepcopy(model)(X))
    assert regions(fast) == 1 and last(fast).reason is None


@pytest.mark.parametrize("kind, training", [(Net, "auto"), (Net, "eager"), (Net, "recompute"), (LazyMask, "auto")])
def test_checkpoints_of_cold_modules(kind, training):
    """What autograd saves is counted, and must be the same again in backward: nothing of a trace, and no captured call
    after one that was PyTorch's."""
    torch.manual_seed(0)
    model = kind()
    twin = copy.deepcopy(model)
    grads = []
    for module in (convoy.compile(model, training=training), twin):
        x = X.clone().requires_grad_()
        for _ in range(3):
            torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).square().sum().backward()
        grads.append([x.grad, *(p.grad for p in module.parameters())])
    near(*grads)


@torch.no_grad()
def test_recurrent_cells_find_their_own_weights():
    """nn.LSTM keeps its weights in a list too, and weak references that tell whether they are still the same."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTM(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return torch.tanh(self.head(self.cell(x)[0]))

    model, x = Tagger(), torch.randn(5, 2, 8)
    before = State(model)
    fast = convoy.compile(model)
    near(fast(x), model(x))
    assert regions(fast) == 1 and before.difference() is None
    model.cell.weight_ih_l0 = nn.Parameter(torch.randn(32, 8))
    for _ in range(2):  # the first call renews the references
        near(fast(x), model(x))
    assert regions(fast) == 1


@torch.no_grad()
def test_scripted_parts_stay_in_pytorch():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())), nn.Conv2d(4, 4, 1), nn.Tanh())
    fast = convoy.compile(model)
    near(fast(X), model(X))
    assert last(fast).reason == "0 is a scripted module, whose state cannot be inspected"


@torch.no_grad()
def test_counters_that_nothing_reads_are_counted():
    class Counter(Net):
        def forward(self, x):
            self.seen.add_(1)
            return super().forward(x)

    model = Counter()
    fast = convoy.compile(model)
    for _ in range(5):
        fast(X)
    assert model.seen == 5 and regions(fast) == 1


@torch.no_grad()
def test_arguments_that_are_changed():
    class Cache(Net):
        def forward(self, x, cache, options=None):
            y = super().forward(x)
            cache["y"].append(y)
            return y * len(cache["y"])

    model = Cache()
    fast = convoy.compile(model)
    caches = {"y": []}, {"y": []}
    for _ in range(3):
        near(fast(X, caches[0]), model(X, caches[1]))
    assert len(caches[0]["y"]) == 3


@torch.no_grad()
def test_objects_among_the_arguments():
    class Options:
        scale = 1.0

    class Scaled(Net):
        def forward(self, x, options):
            return super().forward(x) * options.scale

    model, options = Scaled(), Options()
    fast = convoy.compile(model)
    for scale in (1.0, 3.0, -1.0):
        options.scale = scale
        near(fast(X, options), model(X, options))
        assert regions(fast) == 1


# ---- the state itself --------------------------------------------------------------------------------------------


def test_failing_traces_leave_nothing():
    class Fails(Net):
        def forward(self, x):
            self.partial = self.conv(x)
            if x.sum() > 1e9:
                return x
            return self.partial

    model = Fails()
    before = State(model)
    assert "not captured" in last_reason(model)
    assert before.difference() is None and "partial" not in vars(model)


def test_names_of_changes():
    model = nn.Sequential(OrderedDict(a=Net(), b=nn.ReLU()))
    model.a.options = {"x": [1, {"y": 2}]}
    for change, name in [
        (lambda: setattr(model.a.conv, "stride", (2, 2)), "a.conv.stride"),
        (lambda: model.a.options["x"][1].update(y=3), "a.options['x'][1]['y']"),
        (lambda: model.a.options["x"].append(1), "a.options['x']"),
        (lambda: setattr(model.b, "more", 1), "b.more"),
        (lambda: delattr(model.a.conv, "groups"), "a.conv.groups"),
    ]:
        state = State(model)
        change()
        assert not state.unchanged() and state.difference() == name
        state.restore()
        assert state.unchanged() and state.difference() is None


@pytest.mark.parametrize("watcher", versions.WATCHERS)
def test_every_way_of_seeing_writes(watcher, monkeypatch):
    if watcher.kinds and not versions.counts(watcher):
        pytest.skip("this interpreter does not count")
    monkeypatch.setattr(versions, "watcher", watcher)
    model = Net()
    model.table = OrderedDict(a=1, b=2)
    model.numbers = [1, 2.5, [3]]
    state = State(model)
    changes = [
        lambda: setattr(model.conv, "stride", (2, 2)),
        lambda: model.table.move_to_end("a"),
        lambda: model.numbers.reverse(),
        lambda: model.numbers.append(4),
        lambda: model.numbers[2].clear(),
        lambda: model._modules.update(act=nn.ReLU()),
        lambda: setattr(model.conv, "bias", None),
        lambda: setattr(Net, "order", 3),
        lambda: setattr(model.act, "__class__", nn.ReLU),
    ]
    for change in changes:
        assert state.unchanged()
        change()
        assert not state.unchanged()
        state.restore()
        model.act.__class__ = nn.Tanh


def test_too_much_to_look_at_stays_in_pytorch():
    model = Net()
    model.words = [str(i) for i in range(convoy.state.MOST_ELEMENTS + 1)]
    with pytest.raises(Unseen, match="words holds too much"):
        State(model)
    near(convoy.compile(model)(X), model(X))
    assert "words holds too much" in str(convoy.explain(model, X))
    model.words = {w: w for w in model.words}  # writes to dictionaries are counted
    assert convoy.explain(model, X).reason is None


@torch.no_grad()
def test_explain_changes_nothing():
    for kind in CHANGING:
        model = kind().train()
        before, twin = State(model), copy.deepcopy(model)
        torch.manual_seed(3)
        convoy.explain(model, X)
        assert torch.equal(torch.rand(1), (torch.manual_seed(3), torch.rand(1))[1])
        assert before.difference() is None, kind
        near(contents(model)[1], contents(twin)[1])


@torch.no_grad()
def test_training_and_evaluation_take_turns():
    fast = convoy.compile(Net())
    fast(X)
    fast.eval()(X)
    entries = list(fast._convoy.entries.values())
    for _ in range(3):
        fast.train()(X)
        fast.eval()(X)
    assert list(fast._convoy.entries.values()) == entries and len(entries) == 2
