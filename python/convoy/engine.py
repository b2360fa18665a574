"""Graphs and plans of the library as Python objects: built, printed, freed. Nothing here needs PyTorch."""

import ctypes as C
import functools
import json
import os

from . import binding as b
from .binding import lib

DEVICES = {"auto": b.CVY_AUTO, "ref": b.CVY_REF, "cpu": b.CVY_CPU, "cuda": b.CVY_CUDA}
DTYPES = {"float32": b.CVY_FLOAT32, "float16": b.CVY_FLOAT16, "bfloat16": b.CVY_BFLOAT16}  # by PyTorch's names


class ConvoyError(RuntimeError):
    """A call of the library failed; the message is the library's own."""

    def __init__(self, status):
        super().__init__(lib.cvy_last_error().decode())
        self.status = status


def check(status):
    if status:
        raise ConvoyError(status)


def operators():
    """Signatures of the vocabulary by name: {"relu": "relu()", ...}."""
    found = {}
    while (text := lib.cvy_op_signature(len(found))) is not None:
        found[text.decode().split("(")[0]] = text.decode()
    return found


def slow_operators():
    """Operators that need an exponential, a logarithm or the like for every element."""
    return {name for number, name in enumerate(operators()) if lib.cvy_op_slow(number)}


def text_of(function, *arguments):
    needed = C.c_size_t()
    check(function(*arguments, None, 0, C.byref(needed)))
    text = C.create_string_buffer(needed.value)
    check(function(*arguments, text, needed.value, None))
    return text.value.decode()


def attribute(name, value):
    """One attribute: a word, a number, or a list of numbers."""
    if isinstance(value, str):
        return b.cvy_attr(name.encode(), value.encode(), 0)
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(numbers) > b.CVY_MAX_RANK:
        raise ValueError(f"{name}: {len(numbers)} numbers, at most {b.CVY_MAX_RANK}")
    return b.cvy_attr(name.encode(), None, len(numbers), (C.c_double * b.CVY_MAX_RANK)(*map(float, numbers)))


class Graph:
    def __init__(self):
        self.handle, self.outputs = C.c_void_p(), []
        check(lib.cvy_graph_create(C.byref(self.handle)))

    def __del__(self):
        if getattr(self, "handle", None):
            lib.cvy_graph_free(self.handle)

    def source(self, name, shape, is_param, dtype="float32"):
        value, dims = C.c_int32(), (C.c_int64 * max(len(shape), 1))(*shape)
        declare = lib.cvy_graph_param if is_param else lib.cvy_graph_input
        check(declare(self.handle, name.encode(), DTYPES[dtype], len(shape), dims, C.byref(value)))
        return value.value

    def apply(self, op, args, attrs):
        """args: values of this graph or None; attrs: by name, None ones are left out."""
        given = [attribute(k, v) for k, v in attrs.items() if v is not None]
        values = (C.c_int32 * len(args))(*(b.CVY_NONE if a is None else a for a in args))
        call = b.cvy_call(
            C.sizeof(b.cvy_call), op.encode(), None, values, (b.cvy_attr * len(given))(*given), len(args), len(given)
        )
        out = C.c_int32()
        check(lib.cvy_graph_apply(self.handle, C.byref(call), C.byref(out)))
        return out.value

    def output(self, value):
        check(lib.cvy_graph_output(self.handle, value))

    def shape(self, value):
        rank, dims = C.c_int32(), (C.c_int64 * b.CVY_MAX_RANK)()
        check(lib.cvy_graph_shape(self.handle, value, C.byref(rank), dims))
        return tuple(dims[: rank.value])

    def dtype(self, value):
        """One of DTYPES."""
        found = C.c_int()
        check(lib.cvy_graph_dtype(self.handle, value, C.byref(found)))
        return next(name for name, number in DTYPES.items() if number == found.value)

    def __str__(self):
        return text_of(lib.cvy_graph_print, self.handle)


class Plan:
    """deferred: without code, so it can be compiled together with others by compile_plans()."""

    def __init__(self, graph, device, deferred=False, **options):
        self.handle = C.c_void_p()
        self.options = b.cvy_options(size=C.sizeof(b.cvy_options), device=DEVICES[device],
                                     deferred=b.CVY_ON if deferred else b.CVY_OFF, **options)  # fmt: skip
        check(lib.cvy_plan_create(graph.handle, C.byref(self.options), C.byref(self.handle)))
        self.ready = False
        if not deferred:
            self.settle()

    def settle(self):
        """Reads the properties that are known once there is code."""
        found = b.cvy_prepared()
        check(lib.cvy_plan_prepared(self.handle, C.byref(found)))
        self.digest, self.prepared = found.digest, found.bytes
        self.workspace = lib.cvy_plan_workspace(self.handle)
        self.scratch = self.workspace - self.prepared  # bytes of a workspace besides the prepared part
        self.ready = True

    def __del__(self):
        if getattr(self, "handle", None):
            lib.cvy_plan_free(self.handle)

    def cost(self):
        cost = b.cvy_cost()
        check(lib.cvy_plan_cost(self.handle, C.byref(cost)))
        return cost

    def measure(self):
        """Runs every pass a few times; afterwards the plan's text shows the measured times. See cvy_plan_measure()."""
        check(lib.cvy_plan_measure(self.handle))

    def launches(self, strides):
        """The launches of a run, in order. strides: of the library's tensors, arrays or None. See cvy_plan_launches()."""
        buffers = (b.cvy_buffer * len(strides))(*(b.cvy_buffer(None, s) for s in strides))
        return json.loads(text_of(lib.cvy_plan_launches, self.handle, buffers, len(strides)))

    def __str__(self):
        return text_of(lib.cvy_plan_print, self.handle)


def check_environment():
    """Raises ConvoyError if a variable of the library has an invalid value."""
    if values := tuple(sorted(item for item in os.environ.items() if item[0].startswith("CVY_"))):
        plan_under(values)


@functools.lru_cache(maxsize=1)
def plan_under(values):
    """A plan, because the library checks its variables when it makes one; once for the same values."""
    graph = Graph()
    graph.apply("relu", [graph.source("x", (1,), False)], {})
    Plan(graph, "cpu")


def compile_plans(plans):
    """Compiles plans that have no code: on all cores, shared kernels once."""
    waiting = [plan for plan in plans if not plan.ready]
    check(lib.cvy_plans_compile((C.c_void_p * len(waiting))(*(plan.handle for plan in waiting)), len(waiting)))
    for plan in waiting:
        plan.settle()
