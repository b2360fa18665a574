"""include/convoy.h through ctypes: the same functions, structs, enums and constants, under the same names.

Nothing here needs PyTorch. `test/torch/test_binding.py` compares every declaration with the header.
"""

import ctypes as C
import os
from pathlib import Path

CVY_VERSION = "0.2.0"
CVY_MAX_RANK = 6
CVY_MAX_OPERATORS = 65536
CVY_ALIGN = 256
CVY_NONE = -1
CVY_KEEP_PREPARED = 1
CVY_KEEP_WORKSPACE = 2

ENUMS = {
    "cvy_status": dict(
        CVY_OK=0, CVY_INVALID=1, CVY_NO_MEMORY=2, CVY_UNSUPPORTED=3, CVY_NO_DEVICE=4, CVY_FAILED=5, CVY_STALE=6
    ),
    "cvy_dtype": dict(CVY_FLOAT32=0, CVY_FLOAT16=1, CVY_BFLOAT16=2),
    "cvy_role": dict(CVY_INPUT=0, CVY_PARAM=1, CVY_OUTPUT=2),
    "cvy_device": dict(CVY_AUTO=0, CVY_REF=1, CVY_CPU=2, CVY_CUDA=3),
    "cvy_precision": dict(CVY_FP32=0, CVY_TF32=1),
    "cvy_effort": dict(CVY_ESTIMATE=0, CVY_MEASURE=1),
    "cvy_switch": dict(CVY_DEFAULT=0, CVY_ON=1, CVY_OFF=2),
}
for _values in ENUMS.values():
    globals().update(_values)


class cvy_attr(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("text", C.c_char_p),
        ("count", C.c_int32),
        ("value", C.c_double * CVY_MAX_RANK),
    ]


class cvy_call(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("op", C.c_char_p),
        ("name", C.c_char_p),
        ("args", C.POINTER(C.c_int32)),
        ("attrs", C.POINTER(cvy_attr)),
        ("n_args", C.c_int32),
        ("n_attrs", C.c_int32),
    ]


class cvy_tensor(C.Structure):
    _fields_ = [
        ("name", C.c_char_p),
        ("value", C.c_int32),
        ("role", C.c_int32),
        ("rank", C.c_int32),
        ("dtype", C.c_int32),
        ("dims", C.c_int64 * CVY_MAX_RANK),
    ]


class cvy_options(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("device", C.c_int32),
        ("precision", C.c_int32),
        ("effort", C.c_int32),
        ("threads", C.c_int32),
        ("winograd", C.c_int32),
        ("fuse", C.c_int32),
        ("ordinal", C.c_int32),
        ("seed", C.c_uint32),
        ("strided", C.c_int32),
        ("deferred", C.c_int32),
    ]


class cvy_cost(C.Structure):
    _fields_ = [
        ("seconds", C.c_double),
        ("flops", C.c_double),
        ("bytes", C.c_double),
        ("floor", C.c_double),
        ("peak", C.c_double),
        ("bandwidth", C.c_double),
        ("passes", C.c_int32),
    ]


class cvy_buffer(C.Structure):
    _fields_ = [("data", C.c_void_p), ("strides", C.POINTER(C.c_int64))]


class cvy_prepared(C.Structure):
    _fields_ = [("bytes", C.c_size_t), ("digest", C.c_char * 65)]


class cvy_memory(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("prepared", C.c_void_p),
        ("prepared_size", C.c_size_t),
        ("workspace", C.c_void_p),
        ("workspace_size", C.c_size_t),
    ]


class cvy_word(C.Structure):
    _fields_ = [("at", C.POINTER(C.c_uint64)), ("value", C.c_uint64)]


class cvy_copy(C.Structure):
    _fields_ = [("at", C.c_void_p), ("copy", C.c_void_p), ("size", C.c_size_t)]


class cvy_repeat(C.Structure):
    _fields_ = [
        ("size", C.c_size_t),
        ("plan", C.c_void_p),
        ("buffers", C.POINTER(cvy_buffer)),
        ("n_buffers", C.c_int32),
        ("flags", C.c_uint32),
        ("memory", cvy_memory),
        ("call", C.POINTER(C.c_uint64)),
        ("words", C.POINTER(cvy_word)),
        ("copies", C.POINTER(cvy_copy)),
        ("n_words", C.c_size_t),
        ("n_copies", C.c_size_t),
    ]


# Handles are void pointers; cvy_value is int32_t; enums are int.
_P = C.POINTER
_HANDLE, _OUT, _DIMS, _SIZE, _VALUE = C.c_void_p, _P(C.c_void_p), _P(C.c_int64), _P(C.c_size_t), _P(C.c_int32)
FUNCTIONS = {
    "cvy_version": (C.c_char_p, []),
    "cvy_status_name": (C.c_char_p, [C.c_int]),
    "cvy_last_error": (C.c_char_p, []),
    "cvy_graph_create": (C.c_int, [_OUT]),
    "cvy_graph_parse": (C.c_int, [C.c_char_p, _OUT]),
    "cvy_graph_free": (None, [_HANDLE]),
    "cvy_graph_input": (C.c_int, [_HANDLE, C.c_char_p, C.c_int, C.c_int32, _DIMS, _VALUE]),
    "cvy_graph_param": (C.c_int, [_HANDLE, C.c_char_p, C.c_int, C.c_int32, _DIMS, _VALUE]),
    "cvy_graph_apply": (C.c_int, [_HANDLE, _P(cvy_call), _VALUE]),
    "cvy_graph_chain": (C.c_int, [_HANDLE, C.c_int32, C.c_char_p, _VALUE]),
    "cvy_graph_output": (C.c_int, [_HANDLE, C.c_int32]),
    "cvy_graph_shape": (C.c_int, [_HANDLE, C.c_int32, _VALUE, _DIMS]),
    "cvy_graph_dtype": (C.c_int, [_HANDLE, C.c_int32, _P(C.c_int)]),
    "cvy_graph_tensors": (C.c_int32, [_HANDLE]),
    "cvy_graph_tensor": (C.c_int, [_HANDLE, C.c_int32, _P(cvy_tensor)]),
    "cvy_graph_print": (C.c_int, [_HANDLE, C.c_char_p, C.c_size_t, _SIZE]),
    "cvy_op_signature": (C.c_char_p, [C.c_int32]),
    "cvy_op_slow": (C.c_int32, [C.c_int32]),
    "cvy_plan_create": (C.c_int, [_HANDLE, _P(cvy_options), _OUT]),
    "cvy_plan_free": (None, [_HANDLE]),
    "cvy_plans_compile": (C.c_int, [_OUT, C.c_int32]),
    "cvy_plan_workspace": (C.c_size_t, [_HANDLE]),
    "cvy_plan_prepared": (C.c_int, [_HANDLE, _P(cvy_prepared)]),
    "cvy_plan_device": (C.c_int, [_HANDLE]),
    "cvy_plan_cost": (C.c_int, [_HANDLE, _P(cvy_cost)]),
    "cvy_plan_print": (C.c_int, [_HANDLE, C.c_char_p, C.c_size_t, _SIZE]),
    "cvy_plan_measure": (C.c_int, [_HANDLE]),
    "cvy_plan_why": (C.c_int, [_HANDLE, C.c_char_p, C.c_size_t, _SIZE]),
    "cvy_plan_run": (C.c_int, [_HANDLE, _P(cvy_buffer), C.c_int32, C.c_void_p, C.c_size_t, C.c_uint32, C.c_void_p]),
    "cvy_plan_run_in": (C.c_int, [_HANDLE, _P(cvy_buffer), C.c_int32, _P(cvy_memory), C.c_uint32, C.c_void_p]),
    "cvy_words_hold": (C.c_int32, [_P(cvy_word), C.c_size_t]),
    "cvy_plan_repeat": (C.c_int, [_P(cvy_repeat)]),
    "cvy_plan_launches": (C.c_int, [_HANDLE, _P(cvy_buffer), C.c_int32, C.c_char_p, C.c_size_t, _SIZE]),
}


def candidates():
    """Where the library may be: named by the environment, installed next to this file, or built in the source tree."""
    here = Path(__file__).resolve().parent
    if "CONVOY_LIBRARY" in os.environ:
        return [Path(os.environ["CONVOY_LIBRARY"])]
    return [here / "lib" / "libconvoy.so", here.parents[1] / "build" / "libconvoy.so"]


def offer_nvrtc():
    """CUDA's run-time compiler often comes as a wheel, which no loader searches: passes its path unless the environment has one."""
    if "CVY_NVRTC_LIB" in os.environ:
        return
    import sysconfig

    site = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = sorted(site.glob("cu1*/lib/libnvrtc.so.1*")) + sorted(site.glob("cuda_nvrtc/lib/libnvrtc.so.1*"))
    if found:
        os.environ["CVY_NVRTC_LIB"] = str(found[-1])


def load(named=None):
    """The library with its functions' types; `named`: another one than this package's own."""
    paths = [Path(named)] if named else candidates()
    path = next((p for p in paths if p.exists()), None)
    if path is None:
        raise ImportError(f"convoy: there is no {' nor '.join(map(str, paths))}; run make, or pip install .")
    offer_nvrtc()
    library = C.CDLL(str(path))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    found = library.cvy_version().decode()
    if found.split(".")[:2] != CVY_VERSION.split(".")[:2]:
        raise ImportError(f"convoy: {path} is version {found}, this package needs {CVY_VERSION}")
    library.path = path
    return library


lib = load()
