"""Runs a chain through the library with every buffer between guard bands.

Sources lie between NaNs, so that a value read past either end shows in the result, and must keep their bits. Outputs and
the workspace lie between canaries, and are filled with NaN before the run: what is not written shows as well.
"""

import contextlib
import ctypes as C
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from convoy import binding as b  # noqa: E402
from convoy.binding import lib  # noqa: E402
from convoy.engine import DEVICES, ConvoyError, check  # noqa: E402

BAND, CANARY = 131, np.uint32(0x7FA5C3E1)  # floats on either side; a NaN that nobody computes
ISAS = ("portable", "avx2", "avx512")


class Parsed:
    """A graph of a chain text, and the tensors that a run takes: (name, role, shape)."""

    def __init__(self, text):
        self.handle, tensor = C.c_void_p(), b.cvy_tensor()
        check(lib.cvy_graph_parse(text.encode(), C.byref(self.handle)))
        self.tensors = []
        for i in range(lib.cvy_graph_tensors(self.handle)):
            check(lib.cvy_graph_tensor(self.handle, i, C.byref(tensor)))
            self.tensors.append((tensor.name.decode(), tensor.role, tuple(tensor.dims[: tensor.rank])))
        self.sources = [(name, shape) for name, role, shape in self.tensors if role != b.CVY_OUTPUT]
        self.outputs = [shape for _, role, shape in self.tensors if role == b.CVY_OUTPUT]

    def __del__(self):
        if self.handle:
            lib.cvy_graph_free(self.handle)


class Guarded:
    """An array of a shape inside a longer one. `spread`: elements lie that many places apart."""

    def __init__(self, shape, spread=1, shift=0):
        size = int(np.prod(shape, dtype=np.int64))
        self.all = np.full(size * spread + 2 * BAND + shift, CANARY, np.uint32)
        inside = self.all[BAND + shift : BAND + shift + size * spread]
        self.array = inside.view(np.float32)[::spread].reshape(shape)  # a view: sizes and steps are regular
        self.array[...] = np.nan
        self.before = None

    def freeze(self):
        self.before = self.all.copy()
        return self

    def fault(self):
        """What is wrong with the memory after a run, or None."""
        if self.before is not None:
            return None if np.array_equal(self.all, self.before) else "a source was changed"
        bands = self.all.copy()
        offset = (self.array.ctypes.data - self.all.ctypes.data) // 4
        step = self.array.strides[-1] // 4 if self.array.ndim and self.array.size else 1
        bands[offset : offset + self.array.size * step : step] = CANARY
        return None if (bands == CANARY).all() else "wrote past an output"

    def buffer(self):
        strides = (C.c_int64 * max(self.array.ndim, 1))(*(s // 4 for s in self.array.strides))
        return b.cvy_buffer(self.array.ctypes.data, None if self.array.flags.c_contiguous else strides)


@contextlib.contextmanager
def environment(**variables):
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def instruction_sets():
    """Those of CVY_ISA, or else all this machine has."""
    if "CVY_ISA" in os.environ:
        return [os.environ["CVY_ISA"]]
    found = []
    for isa in ISAS:
        with environment(CVY_ISA=isa), contextlib.suppress(ConvoyError):
            Plan(Parsed("x[1] | relu"), device="cpu")
            found.append(isa)
    return found


class Plan:
    def __init__(self, graph, device, **options):
        self.graph, self.handle = graph, C.c_void_p()
        chosen = b.cvy_options(size=C.sizeof(b.cvy_options), device=DEVICES[device], **options)
        check(lib.cvy_plan_create(graph.handle, C.byref(chosen), C.byref(self.handle)))

    def __del__(self):
        if self.handle:
            lib.cvy_plan_free(self.handle)

    def run(self, arrays, spread=1, shift=0, runs=1):
        """Outputs of the last of `runs` runs, and what was wrong with the memory: a list of complaints."""
        sources = [Guarded(shape, spread, shift) for _, shape in self.graph.sources]
        for source, (name, _) in zip(sources, self.graph.sources):
            source.array[...] = arrays[name]
            source.freeze()
        outputs = [Guarded(shape, spread, shift) for shape in self.graph.outputs]
        size = lib.cvy_plan_workspace(self.handle)
        work = np.full(size + 3 * b.CVY_ALIGN, 0xFF, np.uint8)
        start = b.CVY_ALIGN + -work.ctypes.data % b.CVY_ALIGN
        work[:start], work[start + size :] = 0xA5, 0xA5
        buffers = [t.buffer() for t in sources + outputs]
        list_of = (b.cvy_buffer * len(buffers))(*buffers)
        for i in range(runs):
            flags = b.CVY_KEEP_PREPARED if i else 0
            check(lib.cvy_plan_run(self.handle, list_of, len(buffers), work.ctypes.data + start, size, flags, None))
        faults = {t.fault() for t in sources + outputs} - {None}
        if not ((work[:start] == 0xA5).all() and (work[start + size :] == 0xA5).all()):
            faults.add("wrote past the workspace")
        return [o.array for o in outputs], sorted(faults)
