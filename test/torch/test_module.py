"""A compiled module behaves as the original in everything a user can do to a module."""

import copy
import gc
import io
import logging
import pickle
import threading

import pytest
import torch
from torch import nn

import convoy
from agree import assert_agrees, kept, regions
from small_net import Net, X


def test_parameters_are_shared(net):
    fast = convoy.compile(net)
    assert [id(p) for p in fast.parameters()] == [id(p) for p in net.parameters()]
    assert list(fast.state_dict()) == list(net.state_dict())
    assert type(fast).__name__ == "Net" and isinstance(fast, Net)
    assert repr(fast) == f"convoy.compile({net!r}, precision='fp32')"


@torch.no_grad()
def test_changes_of_parameters_are_noticed(net):
    fast = convoy.compile(net)
    assert_agrees(fast, net, X)
    changes = [
        lambda: net.conv.weight.mul_(2),
        lambda: net.conv.weight.data.mul_(0.3),
        lambda: net.head.weight.data.__setitem__((1, 2), 7.0),
        lambda: net.bn.running_mean.add_(1),
        lambda: net.load_state_dict({k: v * 1.25 for k, v in net.state_dict().items()}),
        lambda: setattr(net.conv, "weight", nn.Parameter(torch.randn(8, 3, 3, 3))),
        lambda: setattr(net.head.weight, "data", torch.randn(5, 8)),
        lambda: setattr(net, "head", nn.Linear(8, 4)),
        lambda: setattr(fast, "gain", -0.5),
        lambda: net.conv.weight.set_(torch.randn(8, 3, 3, 3)),
    ]
    for change in changes:
        before = fast(X)
        change()
        after = assert_agrees(fast, net, X)
        assert before.shape != after.shape or not torch.allclose(before, after)
        assert regions(fast) == 1


@torch.no_grad()
def test_what_is_prepared_is_kept(net):
    fast = convoy.compile(net)
    fast(X)
    (slots,) = list(fast._convoy.entries.values())[-1].runners[0].slots.values()
    params = [p for p in (*net.parameters(), *net.buffers()) if p.is_floating_point()]
    prepared = slots[0].prepared
    assert prepared.contents and {r() for r in prepared.tensors} <= set(params)
    assert prepared.ready([r() for r in prepared.tensors]) is not None


def shifted(tensor):
    """The same numbers, 4 bytes past a multiple of 16."""
    return torch.empty(tensor.numel() + 1)[1:].view(tensor.shape).copy_(tensor)


@torch.no_grad()
def test_tensors_in_the_middle_of_others_are_copied_where_plans_need_that(net, monkeypatch):
    fast = convoy.compile(net)
    fast(X)
    (runner,) = list(fast._convoy.entries.values())[-1].runners
    runner.misaligned = 15  # as with dense plans on the GPU
    addresses, run = [], convoy.region._run

    def watched(plan, buffers, n, *rest):
        addresses.extend(buffers[i].data for i in range(n))
        return run(plan, buffers, n, *rest)

    monkeypatch.setattr(convoy.region, "_run", watched)
    assert_agrees(fast, net, shifted(X))
    net.conv.weight.data = shifted(2 * net.conv.weight)
    for _ in range(3):
        assert_agrees(fast, net, X)
        net.conv.weight.mul_(-1.5)
    assert_agrees(fast, net, shifted(X))
    assert addresses and not any(a % 16 for a in addresses)


def test_inference_tensors_may_change_unseen(net):
    with torch.inference_mode():
        frozen = Net().eval()
        frozen.load_state_dict(net.state_dict())
        fast = convoy.compile(frozen)
        for _ in range(2):
            assert_agrees(fast, frozen, X)
            frozen.head.weight.mul_(2)
            frozen.conv.weight.data.neg_()


def test_train_and_eval(net):
    fast = convoy.compile(net)
    twin = copy.deepcopy(net)
    fast.train()
    twin.train()
    assert net.training
    torch.manual_seed(3)
    got = fast(X)
    torch.manual_seed(3)
    want = twin(X)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.bn.running_mean, twin.bn.running_mean)
    assert net.bn.num_batches_tracked == twin.bn.num_batches_tracked == 1
    assert any("batch_norm" in name for name in kept(fast)) and any("dropout" in name for name in kept(fast))
    fast.eval()
    with torch.no_grad():
        assert_agrees(fast, net, X)
    net.bn.train()  # a part alone
    with torch.no_grad():
        torch.testing.assert_close(fast(X), copy.deepcopy(net)(X), rtol=1e-5, atol=1e-5)


def test_conversions_behind_its_back(net):
    """The parameters stay the same objects, with other contents."""
    fast = convoy.compile(net)
    with torch.no_grad():
        fast(X)
        net.double()
        assert torch.equal(fast(X.double()), net(X.double()))
        with pytest.raises(RuntimeError, match="same"):
            fast(X)
        net.float()
        assert_agrees(fast, net, X)
        net.half()
        with pytest.raises(RuntimeError, match="same"):
            fast(X)


def test_device_moves(net):
    fast = convoy.compile(net)
    assert fast.to("cpu") is fast and fast.float() is fast
    on_meta = copy.deepcopy(fast).to("meta")
    assert on_meta(X.to("meta")).shape == (2, 5)


@torch.no_grad()
def test_hooks(net):
    fast = convoy.compile(net)
    fast(X)
    seen = []
    outer = fast.register_forward_hook(lambda m, i, o: seen.append("outer"))
    fast(X)
    assert seen == ["outer"] and regions(fast) == 1
    inner = net.conv.register_forward_hook(lambda m, i, o: o * 2)
    got = fast(X)
    assert torch.equal(got, net(X)) and len(seen) == 3
    inner.remove()
    outer.remove()
    assert_agrees(fast, net, X)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@torch.no_grad()
def test_copies(net, copier):
    fast = convoy.compile(net, winograd=False)
    want = fast(X)
    twin = copier(fast)
    assert type(twin) is type(fast) and twin._convoy.settings == fast._convoy.settings
    assert torch.equal(twin(X), want) and regions(twin) == 1


@torch.no_grad()
def test_torch_save(net):
    file = io.BytesIO()
    torch.save(convoy.compile(net), file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(X), convoy.compile(net)(X))


@torch.no_grad()
def test_other_worlds(net):
    fast = convoy.compile(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fast(X).dtype == net(X).dtype == torch.bfloat16
    with torch.inference_mode():
        y = fast(X)
        assert y.is_inference() and torch.equal(y, fast(X))
    batched = torch.randn(4, 2, 3, 9, 7)
    torch.testing.assert_close(torch.func.vmap(fast)(batched), torch.func.vmap(net)(batched), rtol=1e-5, atol=1e-5)
    _, tangent = torch.func.jvp(fast, (X,), (X,))
    assert tangent.shape == (2, 5)


@torch.no_grad()
def test_sequential_and_slices():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert_agrees(fast[:2], model[:2], X)
    nested = nn.Sequential(fast, nn.Flatten())
    assert torch.equal(nested(X), fast(X).flatten(1))
    outer = convoy.compile(nested)
    assert_agrees(outer, nn.Sequential(model, nn.Flatten()), X)


@torch.no_grad()
def test_threads_share_a_module(net):
    fast = convoy.compile(net)
    inputs = [torch.randn(1 + i % 3, 3, 9, 7) for i in range(12)]
    wants = [fast(x) for x in inputs]
    wrong = []

    def work(i):
        for _ in range(40):
            if not torch.equal(fast(inputs[i]), wants[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@torch.no_grad()
def test_new_threads_setting_makes_a_new_plan(net):
    fast = convoy.compile(net)
    fast(X)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        assert_agrees(fast, net, X)
        assert len(fast._convoy.entries) == 2
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_entries_are_bounded(net):
    from convoy.module import MOST_ENTRIES

    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    fast = convoy.compile(model)
    for n in range(1, MOST_ENTRIES + 6):
        fast(torch.randn(n, 3))
    assert len(fast._convoy.entries) == MOST_ENTRIES


@torch.no_grad()
def test_compiled_modules_die(net):
    import weakref

    fast = convoy.compile(net)
    fast(X)
    ref = weakref.ref(fast)
    del fast
    gc.collect()
    assert ref() is None


def test_hooks_that_a_forward_installs_and_removes():
    class Features(Net):
        def forward(self, x):
            found = []
            handle = self.conv.register_forward_hook(lambda module, given, result: found.append(result))
            y = super().forward(x)
            handle.remove()
            return y, found[0].mean()

    model = Features().eval().requires_grad_(False)
    fast = convoy.compile(model)
    for _ in range(2):
        torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)
    assert regions(fast) >= 1 and not model.conv._forward_hooks


@torch.no_grad()
def test_hooks_of_the_model_itself_are_part_of_it():
    """Installed during its own forward, they stay: they are the model's code. Anybody else's are called by PyTorch."""

    class Hooked(Net):
        installed = False

        def scale(self, module, given, result):
            return result * self.gain

        def forward(self, x):
            if not self.installed:
                self.installed, less = True, [0.5]
                self.conv.register_forward_hook(self.scale)
                self.bn.register_forward_pre_hook(lambda module, given: (given[0] - less[0],))
            return super().forward(x)

    model = Hooked().eval()
    fast = convoy.compile(model)
    for _ in range(5):
        torch.testing.assert_close(fast(X), copy.deepcopy(model)(X), rtol=1e-4, atol=1e-5)
    assert regions(fast) == 1
    model.gain = -2.0
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)
    assert regions(fast) == 1
    seen = []
    handle = model.conv.register_forward_hook(lambda module, given, result: seen.append(result))
    assert torch.equal(fast(X), model(X)) and len(seen) == 2
    handle.remove()
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)
    assert regions(fast) == 1 and len(seen) == 2


def test_classes_that_count_their_subclasses():
    """The compiled class is none of the user's."""
    known = {}

    class Registered(nn.Module):
        def __init_subclass__(cls, *, name, **options):
            super().__init_subclass__(**options)
            known[name] = cls

    class Doubles(Registered, name="doubles"):
        def forward(self, x):
            return torch.relu(x) * 2

    fast = convoy.compile(Doubles())
    torch.testing.assert_close(fast(X), torch.relu(X) * 2)
    assert known == {"doubles": Doubles} and isinstance(fast, Doubles)


def test_only_pytorch_tells_of_a_wrong_shape(caplog):
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    errors = []
    for m in (model, convoy.compile(model)):
        with pytest.raises(RuntimeError) as error:
            m(torch.ones(2, 5))
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
