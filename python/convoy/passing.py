"""Calls of a compiled module that PyTorch runs: recognised as fast as possible."""

import torch
from torch import _C as native

ELEMENTS = torch.Tensor.numel
IN_A_ROW, FREE = 16, 64  # calls that pass: with a look at each, then without


class Passing:
    """Calls of which nothing was worth it: the original is the shortest way, whatever the guards would say. They are told
    apart roughly and fast, and after IN_A_ROW of them the next FREE go without a look: what that touches is not in the
    caches after a large operator. PyTorch's answer is always right, so a wrong guess costs no more than time."""

    def __init__(self):
        self.keys, self.row, self.free = set(), 0, 0

    def key(self, module, args):
        try:
            return module.training, native._is_any_autocast_enabled(), args[0].dtype, *map(ELEMENTS, args)
        except (IndexError, AttributeError, TypeError):  # not tensors alone
            return None

    def holds(self, module, args):
        key = self.key(module, args)
        if key is None or key not in self.keys:
            self.row = 0
            return False
        self.row += 1
        if self.row >= IN_A_ROW:
            self.free = FREE
        return True

    def add(self, module, args):
        self.keys.add(self.key(module, args))

    def clear(self):
        self.keys.clear()
        self.row = self.free = 0
