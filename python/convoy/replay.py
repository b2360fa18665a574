"""convoy.compile(graphs=True): calls of one shape on a GPU as a CUDA graph, one launch instead of hundreds.

A graph is recorded after WARM calls, on copies of the arguments. A replay copies arguments in and results out, so callers never
hold memory that the next replay writes. The graph also reads tensors of the module: it is valid while each has the same
address and version. Otherwise WARM calls run without it, and it is recorded again. Calls that overlap, or come
from another stream, run without it, too.
"""

import threading

import torch
from torch.utils import _pytree as pytree

from .prepared import seen
from .purify import changes_argument
from .region import capturing, restride

WARM = 2  # calls in a row on unchanged parameters, before a graph is worth recording


class Recorded:
    """A graph with the memory it reads and writes."""

    def __init__(self, invoke, tensors, device):
        self.stream = torch.cuda.current_stream(device)
        side = torch.cuda.Stream(device)
        side.wait_stream(self.stream)
        with torch.cuda.stream(side):
            self.inputs = [restride(t, t.shape, t.stride()) for t in tensors]
            for _ in range(WARM):  # values derived from parameters are prepared once per stream, outside the graph
                invoke(self.inputs)
        self.stream.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=side):
            self.results = invoke(self.inputs)
        self.side = side.cuda_stream

    def is_here(self, device):
        return torch.cuda.current_stream(device) == self.stream

    def replay(self):
        self.graph.replay()


def shared(results, others):
    """Does a result share memory with another one, or with something else? Copies would not."""
    places = [t.untyped_storage().data_ptr() for t in results]
    taken = {t.untyped_storage().data_ptr() for t in others}
    return len(set(places)) < len(places) or not taken.isdisjoint(places)


def repeats(tensor):
    """Does it contain elements more than once? Nothing can be copied into such a tensor."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride()))


class Replay:
    """A captured call as a function of its tensors, like the original call."""

    def __init__(self, entry, device, record=Recorded):
        self.invoke, self.fixed, self.runners, self.device, self.record = entry.invoke, entry.fixed, entry.runners, device, record
        self.lock, self.calls, self.recorded, self.versions, self.reason = threading.Lock(), 0, None, None, None
        if changes_argument(entry.capture.graph.graph):
            self.reason = "it changes an argument in place, and a graph would change its copy"
        self.slots = []  # of the regions: the graph contains their workspaces, so no other run may use them

    def __call__(self, tensors):
        if self.reason is not None or not self.lock.acquire(blocking=False):
            return self.invoke(tensors)
        try:
            ready = not capturing(self.device) and self.holds() or self.make(tensors)
            if not ready or not self.recorded.is_here(self.device):
                return self.invoke(tensors)
            return self.replay(tensors)
        finally:
            self.lock.release()

    def holds(self):
        return self.recorded is not None and seen(self.fixed) == self.versions

    def make(self, tensors):
        """Records the call, if it is time to."""
        now = seen(self.fixed)
        self.calls = self.calls + 1 if now == self.versions else 1
        self.recorded, self.versions, self.slots = None, now, []
        if now is None:
            self.reason = "PyTorch does not count the changes of a tensor of the module"
        elif any(map(repeats, tensors)):
            self.reason = "an argument contains an element more than once"
        if self.reason is not None or self.calls <= WARM or capturing(self.device):
            return False
        try:
            recorded = self.record(self.invoke, tensors, self.device)
        except RuntimeError as error:  # an operator of PyTorch that waits for the device
            self.reason = f"not recorded: {str(error).splitlines()[0]}"
            return False
        self.slots = [runner.slots.pop(recorded.side, None) for runner in self.runners]
        leaves = [t for t in pytree.tree_leaves(recorded.results) if isinstance(t, torch.Tensor)]
        if shared(leaves, [*recorded.inputs, *self.fixed]):
            self.reason = "a result shares memory with another, an argument or a parameter"
            return False
        self.recorded = recorded
        return True

    def replay(self, tensors):
        for place, tensor in zip(self.recorded.inputs, tensors):
            place.copy_(tensor)
        self.recorded.replay()
        return pytree.tree_map_only(torch.Tensor, torch.clone, self.recorded.results)

    def refresh(self):
        with self.lock:
            self.recorded, self.versions, self.calls = None, None, 0


def replaying(entry, device, settings):
    """Puts a replay before the call of an entry, if graphs are wanted and the device has them."""
    if settings.graphs and device.type == "cuda" and not torch.is_grad_enabled():
        entry.replays, entry.whole = [Replay(entry, device)], None  # a lane would run the region itself
        entry.invoke = entry.replays[0]
