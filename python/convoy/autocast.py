"""Autocast's conversions as nodes of a captured graph.

Models are captured before the dispatcher, and so before autocast: the graph has a convolution with float32 arguments and a
bfloat16 result. Only PyTorch knows which arguments autocast converts. So every operator of the vocabulary runs once
more on its fake tensors, with an observer between autocast and the operator, and the conversions seen there are written
into the graph, if the operator then gives the same dtype without autocast.

The graph runs under the same autocast as at capture, which does not convert a converted argument again. Conversions that no
region reads are removed, because autocast does them before PyTorch's own operators.
"""

import torch
from torch._subclasses import FakeTensor
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.utils._python_dispatch import TorchDispatchMode

from .program import no_autocast

CAST = torch.ops.aten._to_copy.default


def as_it_runs(graph):
    """The nodes in order, each inside the autocast that it runs in: a forward may enter and leave autocast itself."""
    entered = {}
    try:
        for node in list(graph.nodes):
            if node.target is _enter_autocast:
                entered[node] = _enter_autocast(*node.args)
            elif node.target is _exit_autocast:
                _exit_autocast(entered.pop(node.args[0]))
            yield node
    finally:
        for mode in reversed(entered.values()):
            _exit_autocast(mode)


def any_autocast(graph):
    return torch._C._is_any_autocast_enabled() or any(n.target is _enter_autocast for n in graph.nodes)


class Watch(TorchDispatchMode):
    """Conversions, as (tensor, dtype)."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is CAST and kwargs and kwargs.get("dtype"):
            self.seen.append((args[0], kwargs["dtype"]))
        return function(*args, **(kwargs or {}))


def run(node, values):
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    result = node.target(*args, **kwargs)
    return result[0] if isinstance(result, (tuple, list)) else result


def converted(node):
    """{argument: dtype} for the arguments of a node that autocast converts."""
    values = {n: n.meta.get("val") for n in node.all_input_nodes}
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}
    with Watch() as watch:
        result = run(node, values)
    seen = {n: dtype for tensor, dtype in watch.seen for n, value in tensors.items() if value is tensor}
    # For sums and softmax autocast sets the dtype of the result instead, as if their argument had it.
    widened = {n: result.dtype for n, v in tensors.items() if v.dtype != result.dtype and result.dtype == torch.float32}
    for choice in (seen, widened):
        if choice and gives(node, {**values, **cast(tensors, choice)}, result.dtype):
            return choice
    return {}


def cast(values, dtypes):
    return {n: CAST(values[n], dtype=dtype) for n, dtype in dtypes.items()}


def gives(node, values, dtype):
    """Is that the dtype of the node's result for these values, without autocast?"""
    try:
        with no_autocast():
            return run(node, values).dtype == dtype
    except (RuntimeError, TypeError):  # dtypes that do not go together
        return False


def fake_mode(graph):
    """Of the graph's fake tensors; None if it has none."""
    fakes = (n.meta.get("val") for n in graph.nodes)
    return next((v.fake_mode for v in fakes if isinstance(v, FakeTensor)), None)


def write_casts(graph, wanted):
    """Adds nodes for autocast's conversions before the operators in `wanted`."""
    mode, made = fake_mode(graph), {}
    if mode is None or not any_autocast(graph):
        return
    with mode, torch.no_grad():
        for node in as_it_runs(graph):
            if node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload):
                made.clear()  # a border that nothing moves across, as a conversion that is read twice would
            if node.target not in wanted or node.target is CAST or not torch._C._is_any_autocast_enabled():
                continue
            for source, dtype in converted(node).items():
                if (source, dtype) not in made:
                    made[source, dtype] = write(graph, node, source, dtype)
                node.replace_input_with(source, made[source, dtype])


def write(graph, node, source, dtype):
    with graph.inserting_before(node):
        new = graph.call_function(CAST, (source,), {"dtype": dtype})
    new.meta = {"val": CAST(source.meta["val"], dtype=dtype), "autocast": True}
    return new


def erase_idle_casts(graph, is_region):
    """Removes the nodes of write_casts() for operators that stay in PyTorch after all."""
    for node in list(graph.nodes):
        if node.target is not CAST or "autocast" not in node.meta:  # a region's result is also replaced
            continue
        for user in list(node.users):
            if not is_region(user):
                user.replace_input_with(node, node.args[0])
        if not node.users:
            graph.erase_node(node)
