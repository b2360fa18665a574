"""convoy.compile(): a module of the same class with the same contents, whose forward runs through Convoy.

The compiled module is an instance of a subclass of the original's class and shares its __dict__: parameters, buffers,
submodules, hooks and plain attributes are the same objects, so changes to either affect both. What
belongs only to Convoy lives in a slot next to that dictionary.
"""

import copy
import functools
import gc
import threading

import torch
from torch import _C as native
from torch import nn
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn.modules import module as nn_module
from torch.utils import _pytree as pytree

from . import kinds, lane
from .building import GLOBAL_HOOKS, build_entry, forward_of, hooks_of, inner_hooks
from .gate import TRACING, Busy, in_pytorch, taken
from .kinds import is_plain, kind_of
from .leaks import collected_at_once
from .passing import IN_A_ROW, Passing
from .prepared import seen
from .settings import Settings, autocast_state, only_devices
from .state import EMPTY, Slots, spelled
from .training import Trained, saving_is_watched

MOST_ENTRIES = 64  # shapes per module; the oldest makes room
WORTH = 2  # later calls that make a capture worth its while
VAIN = 6  # captures in a row that were not (declined ones count twice), before calls go without


def nobody_watches(module, ordinary=nn.Module.__call__):
    """Would nn.Module.__call__ only call the forward of the module's class, outside of torch.export and other modes?"""
    own = module.__dict__
    return not (own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]
                or "forward" in own or "_compiled_call_impl" in own or any(GLOBAL_HOOKS) or native._get_tracing_state()
                or native._len_torch_dispatch_stack() or nn.Module.__call__ is not ordinary)  # fmt: skip


# ---- the dispatcher ----------------------------------------------------------------------------------------------


class Dispatcher:
    """Finds the entry of a call, or makes it. `forward(module, *args, **kwargs)` is the original."""

    __slots__ = ("settings", "entries", "lock", "trained", "vain", "rest", "crowd", "counted", "passing", "lanes")

    def __init__(self, settings):
        self.settings, self.entries, self.lock = settings, {}, threading.RLock()  # held while an entry is made
        self.trained = None  # Trained: the last call with gradients ran entirely in PyTorch
        self.vain = 0  # captures in a row that went stale before they were used enough
        self.rest = 0  # calls that PyTorch still gets because of them
        self.counted = None  # addresses and versions of all buffers when the mode was last set
        self.crowd = 0  # calls for which only an unused capture could make room
        self.passing = Passing()
        self.lanes = ()

    def passes(self, module, args, kwargs):
        """Does a short check show that the call is PyTorch's? Never under torch.export or another mode."""
        if native._len_torch_dispatch_stack():
            return False
        if self.trained is not None and self.trained.still(module):
            return True
        return bool(self.passing.keys) and self.passing.holds(module, args, kwargs)

    def call(self, module, forward, args, kwargs):
        if not ordinary_world():
            return self.call_traced(module, forward, args, kwargs)
        if torch.is_grad_enabled() and self.settings.training != "recompute" and saving_is_watched():
            return in_pytorch(forward, module, args, kwargs)  # it must save the same when it is called again
        key = [torch.is_grad_enabled(), self.settings.surroundings(), module.training]
        for a in args:
            if not is_plain(a):
                break
            key.append(kind_of(a))
        else:
            if not kwargs:
                return self.dispatch(module, forward, tuple(key), args, args, None)
        tensors, key, spec = flatten_call(key[:3], args, kwargs)
        if key is None:
            return in_pytorch(forward, module, args, kwargs)
        return self.dispatch(module, forward, key, tensors, args, (kwargs, spec))

    def call_traced(self, module, forward, args, kwargs):
        """Under torch.export, regions are operators that it can record; otherwise the original runs."""
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        static = all(type(n) is int for leaf in leaves for n in leaf.shape)
        cast = native._is_any_autocast_enabled()  # an exported model may be called without
        if not torch.compiler.is_compiling() or not static or cast or any(inner_hooks(module)):
            return in_pytorch(forward, module, args, kwargs)
        from .export import portable

        return portable(module, forward, args, kwargs, self.settings)

    def dispatch(self, module, forward, key, tensors, args, nested):
        entry = self.entries.get(key)
        if entry is not None and entry.asked is not None and entry.asked != (wanted := entry.wanted(tensors)):
            key = (*key, wanted)
            entry = self.entries.get(key)
        if self.rest > 0 or entry is None or not entry.holds():
            entry = self.make(module, forward, key, tensors, nested)
        else:
            entry.served += 1
        if entry is not None and entry.invoke is not None and not any(entry.hooks):
            if entry.left_to_autograd(tensors):
                self.trained = Trained(module, entry.params)
                return in_pytorch(forward, module, args, nested[0] if nested else {})
            results = entry.invoke(tensors)
            if entry.whole is not None and nested is None and not key[0] and not entry.names:
                self.open_lane(module, entry, args)
            return results
        settled = entry is not None and (entry.capture is not None or entry.served >= IN_A_ROW)
        kwargs = nested[0] if nested else {}
        if settled and entry.invoke is None and not any(entry.hooks):
            self.passing.add(module, args, kwargs)
        return in_pytorch(forward, module, args, kwargs)

    def open_lane(self, module, entry, args):
        """Makes a lane for the next such call, unless the module's __call__ or forward has been replaced."""
        cls = type(module)
        plain = cls is compiled_class(cls._original) and "__call__" in cls.__dict__ and autocast_state() is None
        own, hooks = module.__dict__, [*entry.hooks, *hooks_of([module])]
        plain = plain and "forward" not in own and own.get("_compiled_call_impl") is None and not any(hooks)
        if plain and args and kinds.USABLE:
            self.lanes = lane.lanes_with(self.lanes, cls, entry, args, hooks)

    def make(self, module, forward, key, tensors, nested):
        """A new entry, or None if the module changes so often that captures do not pay, or if other threads are using it."""
        if self.rest > 0:  # two threads may both take the last one
            self.rest -= 1
            return None
        try:
            with taken(self.lock):
                with taken(TRACING):  # else it may be another thread's stand-ins that differ
                    entry = self.entries.get(key)
                    if entry is not None and entry.holds():
                        return entry
                    if not self.make_room(module.training):
                        return None
                others = [e.state for k, e in self.entries.items() if k[2] == module.training and e.state is not None]
                with collected_at_once():
                    entry = build_entry(module, forward, tensors, nested, self.settings, others)
                    if others and entry.capture is not None:
                        entry.capture.forget_graph()
                for runner in entry.runners:
                    runner.in_training = module.training
                self.entries[key] = entry
                return entry
        except Busy:
            return None

    def make_room(self, training):
        """For a new entry; False where it would not pay."""
        if self.forget_stale(training) and self.vain >= VAIN:
            self.rest = 4 ** min(self.vain - VAIN + 2, 6) - 1
            return False
        while len(self.entries) >= MOST_ENTRIES:
            older = list(self.entries)[: MOST_ENTRIES // 2]
            useless = next((k for k in older if self.entries[k].served < WORTH), None)
            self.crowd += useless is not None
            if useless is not None and self.crowd & (self.crowd - 1):  # at the first such call, the second, the fourth ...
                return False
            del self.entries[older[0] if useless is None else useless]
            self.passing.clear()
            self.lanes = ()
        return True

    def forget_stale(self, training):
        """Drops captures that no longer hold; returns whether there were any, and counts those that were hardly used. Captures
        in the other mode (training, evaluation) are kept until it comes back."""
        here = [(k, e) for k, e in self.entries.items() if k[2] == training]
        stale = [self.entries.pop(k) for k, e in here if not e.holds()]
        self.lanes = () if stale else self.lanes
        if any(e.served >= WORTH for e in stale):
            self.vain = 0
        elif stale:
            self.vain += 1 + any(e.invoke is None for e in stale)
        return bool(stale)

    def forget(self):
        """All captures, and with them all references to the module's tensors."""
        self.passing.clear()
        self.entries, self.lanes, self.trained = {}, (), None

    def refresh(self):
        self.passing.clear()
        for entry in list(self.entries.values()):
            for kept in (*entry.runners, *entry.replays, *(entry.capture.converted if entry.capture else ())):
                kept.refresh()


def ordinary_world():
    """Nothing watches, transforms or rewrites PyTorch's calls: tensors are ordinary tensors."""
    return only_devices() and not (
        native._len_torch_dispatch_stack()
        or native._functorch.peek_interpreter_stack() is not None
        or native._is_tracing()
        or forward_ad._current_level >= 0
    )


def flatten_call(key, args, kwargs):
    """Tensors, key and nesting of a call that is more than tensors in a row; no key where it cannot be recognised."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = []
    for leaf in leaves:
        if is_plain(leaf):
            key.append(kind_of(leaf))
            tensors.append(leaf)
        elif isinstance(leaf, (torch.Tensor, torch.fx.Proxy)):  # of a class of its own, or while torch.fx records the module
            return None, None, None
        else:
            key.append(spelled(leaf))
    key.append(str(spec))
    constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    try:
        hash(tuple(key))
    except TypeError:
        return None, None, None
    return tensors, tuple(key), (spec, constants, where)


# ---- the class ---------------------------------------------------------------------------------------------------


class Compiled:
    """What is different in a compiled module."""

    __slots__ = ()

    def __init_subclass__(cls):
        """The original's is not called: it may want arguments, or keep a list of the user's classes."""

    def _apply(self, function, *args, **kwargs):
        """Every conversion comes through here: converted and back, a parameter may have the same address and other values."""
        if getattr(torch.__future__, "get_swap_module_params_on_conversion", bool)():  # refuses tensors with weak references
            dispatcher_of(self).forget()
            gc.collect()
        result = super()._apply(function, *args, **kwargs)
        dispatcher_of(self).refresh()
        return result

    def train(self, mode=True):
        """Running statistics change without a new version; only the batches are counted (`num_batches_tracked`)."""
        dispatcher, counted = dispatcher_of(self), seen(list(self.buffers()))
        if dispatcher.counted not in (None, counted):
            dispatcher.refresh()
        dispatcher.counted = counted
        return super().train(mode)

    def __repr__(self):
        return f"convoy.compile({super().__repr__()}, {dispatcher_of(self).settings.told()})"

    def _replicate_for_data_parallel(self):
        """A replica exists for one call, too short for a trace to pay: it is a module of the original's class."""
        return twin(super()._replicate_for_data_parallel(), type(self)._original)

    def __reduce_ex__(self, protocol):
        """As the original's class defines it; what belongs to Convoy is created anew."""
        original, settings = type(self)._original, dispatcher_of(self).settings
        if original.__reduce_ex__ is not object.__reduce_ex__ or original.__reduce__ is not object.__reduce__:
            return compiled_with, (twin(self, original), settings)
        own = getattr(original, "__getstate__", None) is not getattr(object, "__getstate__", None)  # the latter: from 3.11 on
        return rebuild, (original, settings), self.__getstate__() if own else self.__dict__


def dispatcher_of(module):
    try:
        return module._convoy
    except AttributeError:  # made by the class itself, as a slice of Sequential is
        object.__setattr__(module, "_convoy", Dispatcher(Settings()))
        return module._convoy


def caller(original, cls):
    """__call__ of a compiled class: nn.Module's, after checking whether the call was made before (lane.py), or is one of
    those that PyTorch runs without a look (passing.py)."""

    def __call__(self, *args, **kwargs):
        if is_dynamo_compiling():
            return nn.Module.__call__(self, *args, **kwargs)
        try:
            dispatcher = self._convoy
        except AttributeError:
            dispatcher = dispatcher_of(self)
        if not kwargs:
            for candidate in dispatcher.lanes:
                if len(args) == candidate.count and candidate.check(*args) and type(self) is candidate.cls:
                    result = candidate.run(args)
                    if result is not lane.MISS:
                        return result
                    break
        passing, trained = dispatcher.passing, dispatcher.trained
        if passing.free > 0 or trained is not None and trained.still(self):
            if type(self) is cls and nobody_watches(self):
                passing.free -= passing.free > 0  # two threads may both take the last one
                return in_pytorch(original.forward, self, args, kwargs)
        return nn.Module.__call__(self, *args, **kwargs)

    return __call__


@functools.lru_cache(maxsize=None)
def compiled_class(original):
    method = forward_of(original) is original.forward
    def forward(self, *args, **kwargs):
        plain = original.forward if method else forward_of(original)  # as it is now
        if is_dynamo_compiling():
            return plain(self, *args, **kwargs)
        dispatcher = dispatcher_of(self)
        if dispatcher.passes(self, args, kwargs):
            return in_pytorch(plain, self, args, kwargs)
        return dispatcher.call(self, plain, args, kwargs)

    functools.update_wrapper(forward, original.forward)
    contents = {"__slots__": ("_convoy",), "_original": original, "forward": forward, "__doc__": original.__doc__}
    made = derived(original, contents | ways_of_class(original))
    if method and original.__call__ is nn.Module.__call__ and original._call_impl is nn.Module._call_impl:
        made.__call__ = caller(original, made)
    made.__module__, made.__qualname__ = original.__module__, original.__qualname__
    return made


def derived(original, contents):
    """The class, made as the original's metaclass makes classes, unless that refuses, as one does that keeps a list of names."""
    try:
        return type(original.__name__, (Compiled, original), contents)
    except Exception:
        return type.__new__(type(original), original.__name__, (Compiled, original), contents)


def ways_of_class(original):
    """Methods that need an object of the original's class itself."""
    found = {}
    if hasattr(original, "__copy__"):
        found["__copy__"] = lambda self: compiled_with(copy.copy(twin(self, original)), dispatcher_of(self).settings)
    if hasattr(original, "__deepcopy__"):
        found["__deepcopy__"] = lambda self, memo: compiled_with(
            copy.deepcopy(twin(self, original), memo), dispatcher_of(self).settings
        )
    if issubclass(original, torch.fx.GraphModule):  # which replaces the forward of its class
        found["recompile"] = lambda self: twin(self, original).recompile()
    if hasattr(original, "cls_to_become"):  # a lazy module takes another class, which has no place for what is Convoy's
        found["cls_to_become"] = None
    return found


def rebuild(original, settings):
    module = object.__new__(compiled_class(original))
    object.__setattr__(module, "_convoy", Dispatcher(settings))
    return module


def twin(module, cls):
    """An object of another class with the same contents."""
    return with_contents(object.__new__(cls), module)


def with_contents(made, module):
    """Attributes are shared; what is in `__slots__` can only be copied."""
    object.__setattr__(made, "__dict__", module.__dict__)
    slots = Slots(module)
    for name, value in zip(slots.keys(), slots):
        if value is not EMPTY:
            object.__setattr__(made, name, value)
    return made


def compiled_with(module, settings):
    original = type(module)._original if isinstance(module, Compiled) else type(module)
    return with_contents(rebuild(original, settings), module)


def compile_module(module, **options):
    settings = Settings.of(options)
    if not isinstance(module, nn.Module):
        raise TypeError(f"convoy.compile takes an nn.Module, not {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("convoy.compile takes an nn.Module as it was before scripting")
    return compiled_with(module, settings)


def refresh_module(module):
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"convoy.refresh takes an nn.Module, not {type(module).__name__}")
    for part in module.modules():
        if isinstance(part, Compiled):
            dispatcher_of(part).refresh()
