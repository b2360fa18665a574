"""Regions that need gradients: who computes them.

A backward through Convoy's forward lets PyTorch compute the region again (region.py), which saves memory and costs time.
So training runs in PyTorch, unless the user chose otherwise. That autograd would record a call does not mean
that a model is trained: models are often called without torch.no_grad(). The only sign is a backward, so with
training="auto" Convoy runs a region until the first backward.

If PyTorch runs every region of a call, the module's own forward is the fastest way. The next call need not find
that out again: a module that was trained, is in the same mode and has a parameter that still requires its gradient is
assumed to be trained again. A wrong assumption only costs time, because PyTorch's result is always right.
"""

import weakref

import torch

_saving_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


def saving_hooks():
    """The innermost hooks on the tensors that autograd saves, as a pair, or None."""
    return _saving_hooks(False) if _saving_hooks is not None else None


def saving_is_watched():
    """Do hooks (activation checkpointing, offloading) replace the tensors that autograd saves? Such a call may be
    made again in backward and must then save the same ones."""
    return saving_hooks() is not None


def leaves_of(graph, is_region):
    """For every call of a region, in order: the placeholders that it depends on, as bits."""
    reached, found, n = {}, [], 0
    for node in graph.nodes:
        bits = 0
        for source in node.all_input_nodes:
            bits |= reached[source]
        if node.op == "placeholder":
            bits, n = 1 << n, n + 1
        elif is_region(node.target):
            found.append(bits)
        reached[node] = bits
    return found


def needing_gradients(graph, given):
    """Nodes that depend on a tensor that wants a gradient, if gradients are enabled. given: tensors by placeholder."""
    found, given = set(), iter(given if torch.is_grad_enabled() else ())
    for node in graph.nodes:
        if node.op == "placeholder":
            tensor = next(given, None)
            found |= {node} if tensor is not None and tensor.requires_grad else set()
        elif node.target is not torch.ops.aten.detach.default and not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def gradients_everywhere(leaves, given):
    """Does every region depend on a tensor that wants a gradient? given: tensors by placeholder."""
    wanted = sum(1 << i for i, tensor in enumerate(given) if tensor.requires_grad)
    return all(wanted & bits for bits in leaves)


class Trained:
    """The last call with gradients, all of which PyTorch computes."""

    __slots__ = ("mode", "witness")

    def __init__(self, module, params):
        self.mode = module.training
        self.witness = next((weakref.ref(p) for p in params if p.requires_grad), lambda: None)

    def still(self, module):
        if module.training is not self.mode or not torch.is_grad_enabled():
            return False
        param = self.witness()
        return param is not None and param.requires_grad
