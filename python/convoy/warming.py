"""convoy.warm(): the first call of each shape, made ahead of time."""

import torch

from .explanation import unharmed
from .module import Compiled


def first_floating(module):
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            return tensor
    return torch.empty(0)


def is_shape(given):
    return isinstance(given, (tuple, list)) and len(given) > 0 and all(isinstance(n, int) for n in given)


def arguments_of(given, like):
    """The tensors of one call: `given` is a shape, a tensor, or a list of those."""
    if isinstance(given, torch.Tensor):
        return [given]
    if is_shape(given):
        return [torch.zeros(tuple(given), dtype=like.dtype, device=like.device)]
    if isinstance(given, (tuple, list)) and given:
        return [tensor for each in given for tensor in arguments_of(each, like)]
    raise TypeError(f"convoy.warm: a shape, a tensor, or a list of those for each call, not {given!r}")


def warm_module(module, shapes):
    if not isinstance(module, torch.nn.Module) or not any(isinstance(m, Compiled) for m in module.modules()):
        raise TypeError("convoy.warm takes a module that convoy.compile() returned, or a module that contains one")
    if not isinstance(shapes, (tuple, list)):
        raise TypeError(f"convoy.warm takes a list of calls, not {shapes!r}")
    like = first_floating(module)
    calls = [arguments_of(given, like) for given in shapes]
    for tensors in calls:
        with torch.no_grad(), unharmed(module):
            module(*tensors)
