"""Do tensors still have the same shape, strides, dtype, device, sign and conjugation? `parameter.data = ...` can change any of them without
a new version, and even keep the address.

Dynamo's own check of tensors answers for many of them in one call of C. It also depends on PyTorch's modes, so if it says no
they are compared one by one.
"""

import torch
from torch import _C as native
from torch import nn

PLAIN = (torch.Tensor, nn.Parameter)


def kind_of(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg(), tensor.is_conj()


def is_plain(tensor):
    """Is it of PyTorch's own classes, with memory that its shape and strides describe?"""
    return type(tensor) in PLAIN and tensor.layout is torch.strided and not tensor.is_nested


def checker(tensors):
    """A function that says of as many arguments whether they are of the same types, sizes, strides, dtypes and devices,
    outside of autocast, transforms and traces as now. None if PyTorch's check is missing or sees less."""
    if not tensors:
        return lambda: True
    try:
        guard = native._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=[list(t.shape) for t in tensors],
                                                   dynamic_dims_strides=[list(t.stride()) for t in tensors])  # fmt: skip
    except (AttributeError, TypeError):
        return None
    return guard.check


def sees_enough():
    x = torch.zeros(2, 3)
    with torch.no_grad():
        check = checker([x])
        if check is None or not check(x):
            return False
        others = [x[:1], x.t(), torch.zeros(3, 2).t(), x.double(), x.to("meta"), torch._neg_view(x), 1, None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = check(x)
    return not cast and not any(map(check, others))


USABLE = sees_enough()


class Kinds:
    """Records the tensors' present kinds."""

    __slots__ = ("tensors", "kinds", "check")

    def __init__(self, tensors):
        self.tensors, self.kinds, self.check = tuple(tensors), list(map(kind_of, tensors)), None

    def hold(self):
        check = self.check
        if check is not None and check(*self.tensors):
            return True
        if list(map(kind_of, self.tensors)) != self.kinds:
            return False
        self.check = checker(self.tensors) if USABLE else None  # under today's modes
        return True
