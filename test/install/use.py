"""Uses an installed wheel: its metadata, the library on one chain against the reference, and with PyTorch convoy.compile()."""

import ctypes as C
import importlib.metadata
import importlib.util

import convoy
from convoy import binding as b
from convoy.binding import lib
from convoy.engine import Graph, Plan, check


CHAIN = b"x[2,3,9,11] | conv2d(5,3) | relu"
SIZES = (2 * 3 * 9 * 11, 5 * 3 * 3 * 3, 5, 2 * 5 * 7 * 9)  # x, weight, bias, the result


def result(device):
    """What a device gives for numbers that are the same in every run."""
    graph = Graph()
    lib.cvy_graph_free(graph.handle)
    check(lib.cvy_graph_parse(CHAIN, C.byref(graph.handle)))
    data = [(C.c_float * n)(*((i * 31 % 17 - 8) / 8 for i in range(n))) for n in SIZES]
    buffers = (b.cvy_buffer * len(data))(*(b.cvy_buffer(C.cast(d, C.c_void_p), None) for d in data))
    plan = Plan(graph, device)
    space = (C.c_char * (plan.workspace + b.CVY_ALIGN))()
    place = -(-C.addressof(space) // b.CVY_ALIGN) * b.CVY_ALIGN
    check(lib.cvy_plan_run(plan.handle, buffers, len(data), C.c_void_p(place), plan.workspace, 0, None))
    return list(data[-1])


about = importlib.metadata.metadata("convoy")
assert about["Version"] == convoy.__version__ and about["License"] and about["Requires-Python"] and about["Summary"]
assert "site-packages/convoy" in convoy.__file__ and convoy.operators()
assert max(abs(got - want) for got, want in zip(result("cpu"), result("ref"))) < 1e-5 and any(result("cpu"))
if importlib.util.find_spec("torch"):
    import torch
    from torch import nn

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()).eval()
    fast, x = convoy.compile(model), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
