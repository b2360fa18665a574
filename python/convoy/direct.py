"""Operators that stay in PyTorch, called by PyTorch's Python functions.

A traced graph names an operator by its overload, torch.ops.aten.view.default. Such a call looks up the overload and passes
its arguments one by one, which takes 1 to 15 µs that the module's own code does not spend: as much as the operator. The functions
below take the same arguments in the same order and reach the same overload. The graph keeps the overloads for readers;
only the code generated from it calls the functions.
"""

import contextlib

import torch

aten = torch.ops.aten

# The Python module that has the function, and its overloads.
FUNCTIONS = {
    torch._C._nn: """linear gelu silu hardtanh hardswish hardsigmoid leaky_relu softplus avg_pool2d avg_pool3d
        adaptive_avg_pool2d adaptive_avg_pool3d scaled_dot_product_attention""",
    torch: """conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input batch_norm layer_norm
        group_norm instance_norm max_pool2d max_pool3d relu sigmoid tanh exp log sqrt rsqrt abs neg softmax.int log_softmax.int
        add.Tensor sub.Tensor mul.Tensor div.Tensor matmul bmm mm addmm baddbmm cat stack sum.dim_IntList mean.dim embedding
        dropout clamp where.self pow.Tensor_Scalar tril triu bitwise_not logical_not ones zeros full""",
    torch.Tensor: """view reshape transpose.int permute expand unsqueeze squeeze.dim select.int flatten.using_ints contiguous
        chunk unbind.int t masked_fill.Scalar masked_fill.Tensor to.dtype type_as""",
}


def table():
    found = {}
    for place, names in FUNCTIONS.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            function = getattr(place, packet, None)  # a name that another PyTorch does not have is left out
            if function is not None and hasattr(aten, packet):
                found[getattr(getattr(aten, packet), overload or "default")] = function
    return found


DIRECT = table()


@contextlib.contextmanager
def direct(graph):
    """Code that is written from the graph meanwhile calls PyTorch's functions."""
    changed = [(n, n.target) for n in graph.nodes if n.op == "call_function" and n.target in DIRECT]
    try:
        for node, target in changed:
            node.target = DIRECT[target]
        yield
    finally:
        for node, target in changed:
            node.target = target
