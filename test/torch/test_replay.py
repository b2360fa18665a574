"""graphs=True, with a stand-in for CUDA graphs: what is replayed, when it is recorded again, and when it is not at all."""

import pytest
import torch
from torch import nn

import convoy
from convoy import building as front
from convoy import replay
from convoy.replay import WARM, Replay


class Recorded:
    """Replays by computing again into the same memory, as a graph does."""

    made = 0
    here = True

    def __init__(self, invoke, tensors, device):
        Recorded.made += 1
        self.invoke, self.side = invoke, 17
        self.inputs = [t.clone() for t in tensors]
        self.results = invoke(self.inputs)

    def is_here(self, device):
        return Recorded.here

    def replay(self):
        for place, fresh in zip([self.results], [self.invoke(self.inputs)]):
            place.copy_(fresh)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


@pytest.fixture
def graphs(monkeypatch):
    """Entries on the CPU get a replay with the stand-in."""
    build = front.capture_entry

    def wrapped(entry, *rest):
        entry = build(entry, *rest)
        if entry.invoke is not None:
            entry.replays = [Replay(entry, torch.device("cpu"), Recorded)]
            entry.invoke, entry.whole = entry.replays[0], None
        return entry

    monkeypatch.setattr(front, "capture_entry", wrapped)
    monkeypatch.setattr(replay, "capturing", lambda device: False)
    Recorded.made, Recorded.here = 0, True
    return Recorded


def same(fast, model, x):
    got = fast(x)
    torch.testing.assert_close(got, model(x), rtol=1e-5, atol=1e-5)
    return got


def test_replays_are_right_and_results_are_the_callers(graphs):
    model = Net().eval()
    fast = convoy.compile(model, graphs=True)
    with torch.no_grad():
        results = [same(fast, model, torch.randn(2, 3, 8, 8)) for _ in range(WARM + 4)]
        assert graphs.made == 1
        kept = [r.clone() for r in results]
        fast(torch.randn(2, 3, 8, 8))
        assert all(torch.equal(a, b) for a, b in zip(results, kept)), "a later replay wrote into an earlier result"
        assert len({r.data_ptr() for r in results}) == len(results)
        for _ in range(WARM + 2):
            same(fast, model, torch.randn(5, 3, 8, 8))
        assert graphs.made == 2  # one for every shape


def test_parameters_changed_in_place_are_seen(graphs):
    model = Net().eval()
    fast = convoy.compile(model, graphs=True)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for change in (lambda: None, lambda: model.conv.weight.mul_(2), lambda: model.norm.running_mean.add_(1)):
            change()
            for _ in range(WARM + 2):
                same(fast, model, x)
        assert graphs.made == 3
        convoy.refresh(fast)
        same(fast, model, x)
        assert graphs.made == 3 and fast._convoy.entries[next(iter(fast._convoy.entries))].replays[0].recorded is None


def test_other_streams_and_busy_graphs_go_the_usual_way(graphs):
    model = Net().eval()
    fast = convoy.compile(model, graphs=True)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(WARM + 1):
            same(fast, model, x)
        entry = next(iter(fast._convoy.entries.values()))
        place = entry.replays[0].recorded.inputs[0]
        before = place.clone()
        graphs.here = False
        same(fast, model, torch.randn(2, 3, 8, 8))
        graphs.here = True
        with entry.replays[0].lock:
            same(fast, model, torch.randn(2, 3, 8, 8))
        assert torch.equal(place, before), "the graph's own copy was written"


def test_a_result_that_is_no_copy_is_refused(graphs):
    class Both(Net):
        def forward(self, x):
            y = super().forward(x)
            return y, y[:, :2]

    model = Both().eval()
    fast = convoy.compile(model, graphs=True)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(WARM + 2):
            y, part = fast(x)
            part.zero_()
            assert not y[:, :2].any(), "results no longer share memory"
    assert "shares memory" in next(iter(fast._convoy.entries.values())).replays[0].reason


def test_a_call_that_cannot_be_recorded_says_why(graphs, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Recorded, "__init__", refuse)
    model = Net().eval()
    fast = convoy.compile(model, graphs=True)
    with torch.no_grad():
        for _ in range(WARM + 2):
            same(fast, model, torch.randn(2, 3, 8, 8))
    assert "not permitted" in next(iter(fast._convoy.entries.values())).replays[0].reason


@torch.no_grad()
def test_an_argument_that_is_changed_in_place(graphs):
    class Changes(Net):
        def forward(self, x):
            x.add_(1)
            return super().forward(x)

    net = Changes().eval()
    fast = convoy.compile(net, regions="all", graphs=True)
    for _ in range(2 * WARM + 1):
        x = torch.randn(1, 3, 8, 8)
        y = x.clone()
        torch.testing.assert_close(fast(x), net(y))
        assert torch.equal(x, y)
    assert graphs.made == 0


@torch.no_grad()
def test_an_argument_that_shows_elements_twice(graphs, monkeypatch):
    """A graph's copy of it has its strides, and nothing can be written there."""
    monkeypatch.setattr(graphs, "__init__", lambda self, *_: pytest.fail("recorded"))
    net = Net().eval()
    fast = convoy.compile(net, regions="all", graphs=True)
    for _ in range(2 * WARM + 1):
        same(fast, net, torch.randn(1, 1, 8, 8).expand(2, 3, 8, 8))
