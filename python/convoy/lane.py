"""The shortest way through a compiled module, for a call that was made before: no gradients, only tensors as arguments, one
region for all of it.

An idle GPU waits for everything before the launch, and after a large kernel little of that code and data is in the caches. So a
lane makes three checks, each by one C call, and runs: are the arguments and PyTorch's modes the same (Dynamo's check of tensors), are
the parameters' kinds the same (kinds.py), and are the module's state and hooks the same (state.py)? The region checks its parameters
itself (region.py). If an answer is no, the call takes the long way, which finds out why.
"""

import torch
from torch import _C as native
from torch.autograd import forward_ad

from .kinds import checker
from .versions import watcher

MOST = 4  # lanes of a module: shapes in turn
MISS = object()  # the call must take the long way
_depth, _modes, _grad = native._len_torch_dispatch_stack, native._len_torch_function_stack, torch.is_grad_enabled
_dtype = torch.get_default_dtype


class Lane:
    __slots__ = ("cls", "entry", "count", "check", "kinds", "hooks", "same", "views", "threads", "again", "fixed", "inputs", "params",
                 "pick", "dtype")  # fmt: skip

    def __init__(self, cls, entry, tensors, hooks):
        """cls: the module's class, which has to stay. hooks: dictionaries that have to stay empty. The module itself is not
        held here: it holds its lanes."""
        runner, positions, picks = entry.whole
        program, first = runner.program, len(entry.fixed)
        order = program.order()
        self.cls, self.entry, self.count = cls, entry, len(tensors)
        self.check, self.kinds, self.hooks = checker(tensors), checker(entry.fixed), hooks
        self.same, self.views = self.watch()
        self.threads = torch.get_num_threads() if runner.device.type == "cpu" else None  # the number that the plan was made for
        self.dtype = torch.get_default_dtype()
        self.again, self.pick, self.fixed = runner.again, picks[0], entry.fixed
        wanted = [positions[i] for i in order if not program.params[i]]
        self.inputs = None if wanted == [*range(first, first + len(tensors))] else wanted
        self.params = [entry.fixed[positions[i]] for i in order if program.params[i]]

    def watch(self):
        """(same, views): a watcher of the present module and its hooks, and what it cannot watch."""
        seen, views = self.entry.state.counted()
        return watcher(seen, self.entry.state.objects, self.hooks), views

    def holds(self):
        """Is everything unchanged, even if something was written or cannot be watched?"""
        if any(self.hooks):
            return False
        now = (self.same, self.views) if self.same() else self.watch()  # before the look
        if not self.entry.holds():
            return False
        self.same, self.views = now  # the same values were written again
        return True

    def run(self, args):
        if _grad() or _depth() or _modes() or forward_ad._current_level >= 0 or not self.kinds(*self.fixed):
            return MISS
        if _dtype() is not self.dtype:  # the plan does not depend on it, but the forward may
            return MISS
        if (self.views or not self.same()) and not self.holds():
            return MISS
        if self.threads is not None and self.threads != torch.get_num_threads():
            return MISS
        if self.inputs is not None:
            given = (*self.fixed, *args)
            args = [given[p] for p in self.inputs]
        results = self.again(args, self.params)
        if results is None:
            return MISS
        self.entry.served += 1
        return results[self.pick]


def lanes_with(lanes, cls, entry, args, hooks):
    """The module's lanes, with a new one for this call, which took the long way."""
    alike = [lane for lane in lanes if lane.entry is entry and lane.count == len(args) and lane.check(*args)]
    if any(lane.kinds(*lane.fixed) for lane in alike):
        return lanes
    new = Lane(cls, entry, args, hooks)
    if not new.holds():  # changed while the call ran
        return lanes
    return (new, *[lane for lane in lanes if lane not in alike][: MOST - 1])  # those see parameters under another mode: no use
