"""Calls of an ejected file, with this machine's memory for a GPU's: when it prepares, and which way it goes."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from test_eject import FOLD, driven, imported, recorder  # noqa: F401


@pytest.fixture(scope="module")
def ejected(recorder, tmp_path_factory):  # noqa: F811
    return driven(recorder, tmp_path_factory.mktemp("calls"), {"fold": FOLD})


@pytest.fixture
def on_cpu(ejected, monkeypatch):
    """The file's own calls, with this machine's memory for a GPU's; `stream` and `capturing` are the test's to set."""
    module, calls, world = imported(ejected / "fold.new"), [], SimpleNamespace(stream=7, capturing=False, fails=False)

    def region0(tensors, workspace, prepare, stream):
        calls.append((workspace, prepare, stream))
        assert all(t % 16 == 0 for t in tensors) and workspace % 256 == 0
        if world.fails:
            raise RuntimeError("launch failed")

    monkeypatch.setattr(module, "expect", lambda *_: None)
    monkeypatch.setattr(module, "library", lambda index: SimpleNamespace(region0=region0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(module, "current_device", lambda: None)  # what the CPU's tensors have
    monkeypatch.setattr(module, "current_stream", lambda index: world.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: world.capturing)
    return module, calls, world


def test_prepares_when_it_must(on_cpu):
    module, calls, world = on_cpu
    new, x = module.ModelNew(64), module.get_inputs()[0]

    def prepared():
        with torch.no_grad():
            y = new(x)
        assert y.shape == (16, 64, 31, 31) and calls[-1][2] == world.stream
        return calls[-1][1]

    assert prepared() and not prepared()
    with torch.no_grad():
        new.scale.mul_(2)
    assert prepared() and not prepared()
    new.load_state_dict(module.Model(64).state_dict())
    assert prepared() and not prepared()
    world.stream = 8  # another workspace
    assert prepared() and not prepared() and calls[-1][0] != calls[0][0]
    world.stream = 7
    assert not prepared() and calls[-1][0] == calls[0][0]
    with torch.inference_mode():
        other = module.ModelNew(64)  # parameters whose changes nobody counts
        other(x), other(x)
    assert calls[-2][1] and calls[-1][1]


def test_a_call_like_the_one_before_goes_the_short_way(on_cpu, monkeypatch):
    module, calls, world = on_cpu
    new, x, region = module.ModelNew(64), module.get_inputs()[0], module.region0
    short = []
    again = region.again

    def watched(owner, inputs):
        results = again(owner, inputs)
        short.append(results is not None)
        return results

    monkeypatch.setattr(region, "again", watched)
    strided = x.transpose(2, 3).contiguous().transpose(2, 3)
    odd = torch.empty(x.numel() + 1)[1:].view(x.shape).copy_(x)
    with torch.no_grad():
        for given in (x, x, x.clone(), strided, odd, x):
            new(given)
        assert short == [False, True, True, False, False, True]
        for change in (lambda: new.scale.add_(1), lambda: setattr(new.scale, "data", new.scale.data.clone()),
                       lambda: setattr(new, "scale", torch.nn.Parameter(new.scale.clone()))):  # fmt: skip
            change()
            new(x), new(x)
            assert short[-2:] == [False, True] and [prepare for _, prepare, _ in calls[-2:]] == [True, False]
        world.stream = 9
        new(x), new(x)
        assert short[-2:] == [False, True]
        world.fails = True
        with pytest.raises(RuntimeError, match="launch failed"):
            new(x)
        assert len(short) == 14  # the short way failed, and no other was tried
        world.fails = False
        new(x), new(x)
        assert short[-2:] == [False, True] and calls[-2][1]  # nothing was left of the call that failed
    new(x)
    assert not short[-1]  # gradients are wanted


def test_failures_and_captures_leave_nothing_prepared(on_cpu):
    module, calls, world = on_cpu
    new, x = module.ModelNew(64), module.get_inputs()[0]
    world.fails = True
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="launch failed"):
            new(x)
        world.fails, world.capturing = False, True
        new(x)
        world.capturing = False
        new(x)
        assert calls[-1][1]  # what was captured has not run
        world.capturing = True
        new(x)
        assert not calls[-1][1]
    assert new(x).grad_fn is not None  # refused in backward


def test_parameters_of_another_kind_go_the_long_way(on_cpu, monkeypatch):
    """Another view of the same memory has the same address and version; a parameter may move to another dictionary."""
    module, calls, world = on_cpu
    new, x, region = module.ModelNew(64), module.get_inputs()[0], module.region0
    with torch.no_grad():
        new(x)
        assert region.again(new, (x,)) is not None
        before = new.scale.data
        new.scale.data = before.view(1, *before.shape)
        assert new.scale.data_ptr() == before.data_ptr() and region.again(new, (x,)) is None
        new.scale.data = before
        assert region.again(new, (x,)) is not None
        scale = new.scale.detach()
        del new.scale
        new.register_buffer("scale", scale)
        assert region.again(new, (x,)) is None
        new(x)
        assert region.again(new, (x,)) is not None
        for given in ((3,), (None,), (x.double(),), (x[:1],)):
            assert region.again(new, given) is None
