"""Runs a plan for the GPU on the emulator (test/emulate): kernels run on the CPU, in memory that notices what they do beside it."""

import ctypes as C
import os
from pathlib import Path

import numpy as np

from guarded import b, check, lib

FOLDER = Path(lib.path).resolve().parent / "test" / "emulate"


def install():
    """Puts the emulator in the place of the driver and its compiler, for the rest of this process."""
    os.environ.update({"CVY_CUDA_LIB": str(FOLDER / "libcuda.so.1"), "CVY_NVRTC_LIB": str(FOLDER / "libnvrtc.so.13"),
                       "CVY_CACHE": "off"})  # fmt: skip


def driver(name, *arguments):
    """A call of the driver; fails where it does."""
    get = C.CDLL(str(FOLDER / "libcuda.so.1")).cuGetProcAddress_v2
    address, status = C.c_void_p(), C.c_int()
    get(name.encode(), C.byref(address), 12000, C.c_uint64(0), C.byref(status))
    assert C.CFUNCTYPE(C.c_int, *(type(a) for a in arguments))(address.value)(*arguments) == 0, name


class Memory:
    """Device memory seen as an array: the emulator's is the host's."""

    def __init__(self, shape, dtype=np.float32):
        count = int(np.prod(shape, dtype=np.int64))
        size = max(count, 1) * np.dtype(dtype).itemsize
        self.at = C.c_uint64()
        driver("cuMemAlloc", C.cast(C.byref(self.at), C.c_void_p), C.c_size_t(size))
        self.array = np.frombuffer((C.c_char * size).from_address(self.at.value), dtype)[:count].reshape(shape)

    def __del__(self):
        driver("cuMemFree", self.at)


def run(plan, arrays):
    """Outputs of one run. What a kernel does to memory that is not its own fails its launch."""
    size = lib.cvy_plan_workspace(plan.handle)
    sources = [Memory(shape) for _, shape in plan.graph.sources]
    outputs, work = [Memory(shape) for shape in plan.graph.outputs], Memory((size,), np.uint8)
    for source, (name, _) in zip(sources, plan.graph.sources):
        source.array[...] = arrays[name]
    buffers = [b.cvy_buffer(m.at.value, None) for m in sources + outputs]
    check(lib.cvy_plan_run(plan.handle, (b.cvy_buffer * len(buffers))(*buffers), len(buffers), work.at.value, size, 0, None))
    return [o.array.copy() for o in outputs]
