"""A chain on numpy arrays, through convoy.binding: parse, list the tensors, run with a guard after the workspace."""

import ctypes as C
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from convoy import binding as b  # noqa: E402
from convoy.binding import CVY_INVALID as INVALID, CVY_OFF as OFF, lib  # noqa: E402
from convoy.engine import DEVICES, ConvoyError, check, operators, text_of  # noqa: E402

__all__ = ["INVALID", "OFF", "ConvoyError", "Graph", "operators", "run"]

ROLES = {b.CVY_INPUT: "input", b.CVY_PARAM: "param", b.CVY_OUTPUT: "output"}


@dataclass(frozen=True)
class Spec:
    name: str
    role: str
    shape: tuple


class Graph:
    """A parsed chain and the tensors that run() is handed."""

    def __init__(self, text):
        self.handle = C.c_void_p()
        check(lib.cvy_graph_parse(text.encode(), C.byref(self.handle)))
        self.tensors = [self._tensor(i) for i in range(lib.cvy_graph_tensors(self.handle))]
        self.sources = [t for t in self.tensors if t.role != "output"]
        self.outputs = [t for t in self.tensors if t.role == "output"]

    def _tensor(self, index):
        t = b.cvy_tensor()
        check(lib.cvy_graph_tensor(self.handle, index, C.byref(t)))
        return Spec(t.name.decode(), ROLES[t.role], tuple(t.dims[: t.rank]))

    def print(self):
        return text_of(lib.cvy_graph_print, self.handle)

    def __del__(self):
        if self.handle:
            lib.cvy_graph_free(self.handle)


def buffer_of(array):
    assert array.dtype == np.float32
    strides = (C.c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides))
    return b.cvy_buffer(array.ctypes.data, strides if not array.flags.c_contiguous else None)


def options_of(device):
    """"cpu", or with options after it: "cpu:threads=1:seed=7"."""
    name, *pairs = device.split(":")
    chosen = {key: int(number) for key, number in (pair.split("=") for pair in pairs)}  # the last of a key holds
    return b.cvy_options(size=C.sizeof(b.cvy_options), device=DEVICES[name], **chosen)


def run(graph, arrays, device, outputs=None):
    """Outputs as float32 arrays. `arrays`: by name, of any strides. `outputs`: arrays to write into."""
    plan, workspace, opts = C.c_void_p(), None, options_of(device)
    if outputs is None:
        outputs = [np.full(t.shape, np.float32(-77)) for t in graph.outputs]
    check(lib.cvy_plan_create(graph.handle, C.byref(opts), C.byref(plan)))
    try:
        bytes_ = lib.cvy_plan_workspace(plan)
        assert bytes_ > 0 and bytes_ % b.CVY_ALIGN == 0
        workspace = np.empty(bytes_ + b.CVY_ALIGN, np.uint8)
        start = -workspace.ctypes.data % b.CVY_ALIGN
        workspace[start + bytes_ :] = 0xA5
        buffers = [buffer_of(arrays[t.name]) for t in graph.sources] + [buffer_of(a) for a in outputs]
        pointer = workspace.ctypes.data + start
        list_of = (b.cvy_buffer * len(buffers))(*buffers)
        check(lib.cvy_plan_run(plan, list_of, len(buffers), pointer, bytes_, 0, None))
        assert (workspace[start + bytes_ :] == 0xA5).all(), "wrote past the workspace"
    finally:
        lib.cvy_plan_free(plan)
    return outputs
