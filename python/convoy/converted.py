"""Parameters in another dtype, as autocast and `parameter.to(dtype)` make them: kept from call to call.

Without gradients a converted parameter is treated as a parameter: what plans derive from it is kept, too (prepared.py). It is
converted again, into the same memory, when the parameter has changed. Every stream has its own copy, because streams are not ordered.
"""

import threading
import weakref

import torch

from .prepared import Contents
from .region import capturing, stream_reader
from .vocabulary import CONVERSIONS

GRAD_MODE = torch._C._set_grad_enabled


class Converted:
    """A function of a parameter of one kind, called by captured graphs."""

    def __init__(self, value, dtype):
        self.kind, self.dtype = (value.shape, value.stride(), value.dtype, value.device), dtype
        self.stream, self.lock, self.kept = stream_reader(value.device), threading.Lock(), {}
        self.__name__ = self.__qualname__ = "convoy_converted"  # fx writes code that calls this object by its name

    def __call__(self, parameter):
        if (parameter.shape, parameter.stride(), parameter.dtype, parameter.device) != self.kind:
            return parameter.to(self.dtype)
        stream = self.stream()
        if stream and capturing(parameter.device):
            return parameter.to(self.dtype)  # in the captured graph, which does it whenever it is replayed
        with self.lock:
            of, value, contents = self.kept.get(stream, (lambda: None, None, None))
            if of() is not parameter or not contents.fits([parameter]):
                value = convert(parameter, self.dtype, value)
                self.kept[stream] = weakref.ref(parameter), value, Contents(value, [parameter])
        return value

    def refresh(self):
        with self.lock:
            self.kept = {stream: (lambda: None, value, None) for stream, (_, value, _) in self.kept.items()}


@torch.inference_mode(False)
@torch.no_grad()
def convert(parameter, dtype, place):
    """An existing conversion is changed in place: a new one could get the old one's address."""
    return parameter.to(dtype) if place is None else place.copy_(parameter)


def conversions(graph, is_param):
    """Nodes that convert a parameter, in graphs without gradients."""
    if any(n.target is GRAD_MODE for n in graph.nodes):
        return set()
    return {n for n in graph.nodes if n.target in CONVERSIONS and n.args[0] in is_param and only_converts(n)}


def only_converts(node):
    """Converts only the dtype: no explicit copy, no other layout."""
    before, after = node.args[0].meta["val"], node.meta["val"]
    same = before.stride() == after.stride() and before.device == after.device
    return same and before.dtype != after.dtype and after.is_floating_point()


def keep_conversions(graph, nodes, is_region):
    """Conversions that regions read are kept from now on. Other readers get their own copies, which they may change. Returns what keeps them."""
    found = []
    for node in nodes:
        readers = [user for user in node.users if is_region(user)]
        if readers:
            with graph.inserting_before(node):
                function = Converted(node.args[0].meta["val"], node.meta["val"].dtype)
                kept = graph.call_function(function, (node.args[0],))
            found.append(function)
            kept.meta = dict(node.meta)
            for user in readers:
                user.replace_input_with(node, kept)
        if not node.users:
            graph.erase_node(node)
    return found
