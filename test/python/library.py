"""libconvoy through ctypes, as little as the tests need: parse a chain, list its tensors, run it on numpy arrays."""

import ctypes as C
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PATH = os.environ.get("CONVOY_LIBRARY", str(ROOT / "build" / "libconvoy.so"))
MAX_RANK = 6
ALIGN = 256
DEVICES = {"auto": 0, "ref": 1, "cpu": 2, "cuda": 3}
ROLES = ("input", "param", "output")
OFF = 2  # of a cvy_switch
OK, INVALID, NO_MEMORY, UNSUPPORTED, NO_DEVICE, FAILED = range(6)


class Options(C.Structure):
    _fields_ = [("size", C.c_size_t)] + [
        (name, C.c_int32)
        for name in ("device", "precision", "effort", "threads", "winograd", "fuse", "ordinal")
    ] + [("seed", C.c_uint32)]


class Tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("value", C.c_int32),
        ("role", C.c_int32),
        ("rank", C.c_int32),
        ("dtype", C.c_int32),
        ("dims", C.c_int64 * MAX_RANK),
    ]


class Buffer(C.Structure):
    _fields_ = [("data", C.c_void_p), ("strides", C.POINTER(C.c_int64))]


def load():
    lib = C.CDLL(PATH)
    handle, out = C.c_void_p, C.POINTER(C.c_void_p)
    signatures = {
        "cvy_last_error": (C.c_char_p, []),
        "cvy_op_signature": (C.c_char_p, [C.c_int32]),
        "cvy_graph_parse": (C.c_int, [C.c_char_p, out]),
        "cvy_graph_free": (None, [handle]),
        "cvy_graph_tensors": (C.c_int32, [handle]),
        "cvy_graph_tensor": (C.c_int, [handle, C.c_int32, C.POINTER(Tensor)]),
        "cvy_graph_print": (C.c_int, [handle, C.c_char_p, C.c_size_t, C.POINTER(C.c_size_t)]),
        "cvy_plan_create": (C.c_int, [handle, C.POINTER(Options), out]),
        "cvy_plan_free": (None, [handle]),
        "cvy_plan_workspace": (C.c_size_t, [handle]),
        "cvy_plan_run": (C.c_int, [handle, C.POINTER(Buffer), C.c_int32, C.c_void_p, C.c_size_t, C.c_uint32,
                                  C.c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


lib = load()


class ConvoyError(Exception):
    def __init__(self, status):
        super().__init__(lib.cvy_last_error().decode())
        self.status = status


def check(status):
    if status != OK:
        raise ConvoyError(status)


def operators():
    """Signatures of all operators, by name: {"relu": "relu()", ...}."""
    found, index = {}, 0
    while (text := lib.cvy_op_signature(index)) is not None:
        found[text.decode().split("(")[0]] = text.decode()
        index += 1
    return found


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
        t = Tensor()
        check(lib.cvy_graph_tensor(self.handle, index, C.byref(t)))
        return Spec(t.name.decode(), ROLES[t.role], tuple(t.dims[: t.rank]))

    def print(self):
        needed = C.c_size_t()
        check(lib.cvy_graph_print(self.handle, None, 0, C.byref(needed)))
        text = C.create_string_buffer(needed.value)
        check(lib.cvy_graph_print(self.handle, text, needed.value, None))
        return text.value.decode()

    def __del__(self):
        if self.handle:
            lib.cvy_graph_free(self.handle)


def buffer_of(array):
    assert array.dtype == np.float32
    strides = (C.c_int64 * max(array.ndim, 1))(*(s // array.itemsize for s in array.strides))
    return Buffer(array.ctypes.data, strides if not array.flags.c_contiguous else None)


def options_of(device):
    """"cpu", or with options after it: "cpu:threads=1:seed=7"."""
    name, *pairs = device.split(":")
    chosen = {key: int(number) for key, number in (pair.split("=") for pair in pairs)}  # the last of a key holds
    return Options(size=C.sizeof(Options), device=DEVICES[name], **chosen)


def run(graph, arrays, device, outputs=None):
    """Outputs as float32 arrays. `arrays`: by name, of any strides. `outputs`: arrays to write into."""
    plan, workspace, opts = C.c_void_p(), None, options_of(device)
    if outputs is None:
        outputs = [np.full(t.shape, np.float32(-77)) for t in graph.outputs]
    check(lib.cvy_plan_create(graph.handle, C.byref(opts), C.byref(plan)))
    try:
        bytes_ = lib.cvy_plan_workspace(plan)
        assert bytes_ > 0 and bytes_ % ALIGN == 0
        workspace = np.empty(bytes_ + ALIGN, np.uint8)
        start = -workspace.ctypes.data % ALIGN
        workspace[start + bytes_ :] = 0xA5
        buffers = [buffer_of(arrays[t.name]) for t in graph.sources] + [buffer_of(a) for a in outputs]
        pointer = workspace.ctypes.data + start
        check(lib.cvy_plan_run(plan, (Buffer * len(buffers))(*buffers), len(buffers), pointer, bytes_, 0, None))
        assert (workspace[start + bytes_ :] == 0xA5).all(), "wrote past the workspace"
    finally:
        lib.cvy_plan_free(plan)
    return outputs
