"""convoy.compile() gives a module that behaves as the original in everything a user can do to it."""

import copy
import gc
import importlib
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, kept, regions

BLOCKS = {  # small versions: constructor arguments, input
    "block_a": ((8, 64, 3, 16, (64, 1, 1), 4, 0, 1), (2, 8, 30, 37)),
    "block_b": ((8, 64, 3, 16, 1e-5), (2, 8, 21, 18)),
    "block_c": ((8, 32, 3, 8, (32, 1, 1), (32, 1, 1)), (3, 8, 25, 20)),
}


class Net(nn.Module):
    """Something of everything."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)
        self.gain = 1.5

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x))) * self.gain
        x = self.drop(x)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def net():
    net = Net().eval()
    with torch.no_grad():
        net.bn.running_mean.normal_()
        net.bn.running_var.uniform_(0.5, 2)
    return net


X = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("factor", [1, 3, 0.01, -1])
def test_blocks(name, factor):
    arguments, shape = BLOCKS[name]
    problem = importlib.import_module(name)
    assert len(problem.get_init_inputs()) == len(arguments)
    torch.manual_seed(5)
    model = problem.Model(*arguments)
    torch.manual_seed(5)
    fast = problem.ModelNew(*arguments)
    assert isinstance(fast, problem.Model)
    for a, b in zip(model.parameters(), fast.parameters()):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert_agrees(fast, model, torch.rand(shape) * factor)
    assert regions(fast) == 1 and kept(fast) == []


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


def test_what_is_no_choice():
    with pytest.raises(ValueError, match="precision is fp32, tf32, torch"):
        convoy.compile(Net(), precision="fp16")
    with pytest.raises(TypeError, match="nn.Module, not function"):
        convoy.compile(F.gumbel_softmax)


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


def test_double_runs_in_pytorch(net):
    fast = convoy.compile(net).double()
    assert torch.equal(fast(X.double()), net(X.double()))


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
def test_layouts_of_inputs(net):
    fast = convoy.compile(net)
    odd = [
        X.to(memory_format=torch.channels_last),
        X.transpose(2, 3),
        torch.randn(2, 3, 18, 14)[:, :, ::2, ::2],
        torch.randn(1, 3, 9, 7).expand(4, 3, 9, 7),
        torch.randn(5, 3, 9, 7)[1:3],
        torch.randn(0, 3, 9, 7),
        X.flip(0),
    ]
    for x in odd:
        assert_agrees(fast, net, x)


@torch.no_grad()
def test_channels_last_stays(net):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()).to(memory_format=torch.channels_last)
    x = X.to(memory_format=torch.channels_last)
    got = assert_agrees(convoy.compile(model), model, x)
    assert got.is_contiguous(memory_format=torch.channels_last) == model(x).is_contiguous(
        memory_format=torch.channels_last
    )


@torch.no_grad()
def test_calls_of_all_kinds():
    class Calls(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 4, 3)

        def forward(self, x, y=None, *, scale=1.0, names=()):
            z = torch.tanh(self.conv(x)) * scale
            if y is not None:
                z = z + self.conv(y["y"][0])
            return {"z": z, "more": [z.sum(), len(names)], "same": x}

    model = Calls()
    fast = convoy.compile(model)
    x, y = torch.randn(2, 3, 8), {"y": [torch.randn(2, 3, 8)]}
    assert_agrees(fast, model, x)
    assert_agrees(fast, model, x, y)
    assert_agrees(fast, model, x, y, scale=2.0, names=("a", "b"))
    assert_agrees(fast, model, x=x, scale=-1)
    assert fast(x)["same"] is x
    assert len(fast._convoy.entries) == 4


@torch.no_grad()
def test_what_cannot_be_captured_runs_anyway():
    class Data(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x)
            return y if y.sum() > 0 else -y

    model = Data()
    fast = convoy.compile(model)
    assert torch.equal(fast(X), model(X)) and torch.equal(fast(-X), model(-X))
    assert "not captured" in list(fast._convoy.entries.values())[-1].reason


@torch.no_grad()
def test_parts_around_other_operators():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(7, 4, 3)

        def forward(self, x):
            y = F.silu(self.a(x))
            z = torch.cat([x, y.sort(1)[0]], 1)
            return F.gelu(self.b(z)) + F.interpolate(y, size=(7, 5), mode="bilinear").mean(), y

    model = Mixed()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert regions(fast) == 2
    assert {"aten.sort.default", "aten.upsample_bilinear2d.vec"} <= set(kept(fast))


@torch.no_grad()
def test_regions_do_not_swallow_their_own_inputs():
    """conv -> sort -> add: a region of conv and add would have to wait for itself."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            y = self.conv(x).relu()
            z = y.sort(1)[0]
            return (y * 2 + z).tanh(), y

    model = Around()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert regions(fast) == 2


@torch.no_grad()
def test_in_place_operators():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True)

        def forward(self, x, mutate):
            y = self.conv(x)
            z = y * 2
            y.add_(1)
            y = self.relu(y)
            y += z
            v = y.view(y.shape[0], -1)
            v.mul_(2)  # through a view: y changes too
            if mutate:
                x.sub_(1)
            return y.tanh(), v.exp(), self.conv(x)

    model = InPlace()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X.clone(), False)
    x, y = X.clone(), X.clone()
    for got, want in zip(fast(x, True), model(y, True)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(x, y)


@torch.no_grad()
def test_written_out_forms():
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.limit = 0.7

        def forward(self, x):
            y = self.conv(x)
            y = y * torch.sigmoid(y)
            y = torch.min(y, torch.tensor(self.limit)).max(torch.tensor([0.1]))
            y = y.clamp(min=-1).clamp_max(2) / 3 - 1
            y = (1 - y) * 2.0 + y**2
            y = F.softsign(y) + y.abs().sqrt() + torch.logsumexp(y, 1, keepdim=True)
            y = y.max(dim=1, keepdim=True)[0] + y.amin(1, keepdim=True)
            return y.view(y.size(0), -1).unsqueeze(1).softmax(-1).squeeze(1)

    model = Written()
    fast = convoy.compile(model)
    assert_agrees(fast, model, X)
    assert regions(fast) == 1


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


class Strided(nn.Module):
    def __init__(self, producer, then):
        super().__init__()
        self.producer, self.then = producer, then

    def forward(self, x):
        return self.then(self.producer(x))


THEN = {
    "relu": F.relu,
    "pool": lambda y: F.max_pool2d(F.relu(y), 1),
    "group_norm": lambda y: F.group_norm(y, 1) if y.numel() > 1 else y,
    "layer_norm": lambda y: F.layer_norm(y, y.shape[-1:]).exp(),
    "log_softmax": lambda y: F.log_softmax(y, 1),
    "instance_norm": lambda y: F.instance_norm(y) if y.shape[-1] > 1 else y,
    "means": lambda y: y.relu() * y.mean(1, keepdim=True),
    "numbers, convolution": lambda y: F.conv2d(1 - y[:, :1] / 2, torch.ones(3, 1, 1, 1)).tanh(),
    "max": lambda y: y.relu().max(1, keepdim=True)[0].tanh(),
    "convolution": lambda y: F.conv2d(F.relu(y[:, :1]), torch.ones(3, 1, 1, 1)).tanh(),
    "transposed": lambda y: y.transpose(1, 2).tanh() * 2,
}


@pytest.mark.parametrize("then", THEN)
@torch.no_grad()
def test_strides_where_dimensions_have_one_element(then):
    """A dimension of one element may have any stride; PyTorch's own decides how the next result is laid out."""
    producers = [nn.Conv2d(3, 1, 1), nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last), nn.Identity()]
    for producer in producers:
        model = Strided(producer, THEN[then])
        fast = convoy.compile(model)
        for shape in [(1, 3, 1, 1), (2, 3, 1, 1), (1, 3, 5, 1), (2, 3, 5, 4)]:
            n, c, h, w = shape
            for x in (torch.randn(shape), torch.randn(n, h, w, c).permute(0, 3, 1, 2), torch.randn(c, n, h, w).transpose(0, 1)):
                got, want = fast(x), model(x)
                assert got.stride() == want.stride(), (then, shape, x.stride())
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout])
@torch.no_grad()
def test_dropout_in_place_divides_nothing(kind):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), kind(0.5, inplace=True), nn.Conv2d(4, 4, 1), nn.Tanh())
    fast = convoy.compile(model.eval())
    assert_agrees(fast, model, X)
    assert regions(fast) == 1 and kept(fast) == []


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
