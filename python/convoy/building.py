"""Makes the entry of a call: the module's state, a trace of its forward, and a plan of every region."""

import inspect

import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.utils import _pytree as pytree

from .attended import Attended
from .capture import capture
from .engine import ConvoyError, compile_plans
from .entry import Entry
from .gate import TRACING, Busy, taken
from .invoke import invoker, only_region
from .kinds import PLAIN
from .reasons import Changed, Unseen
from .region import Runner, described
from .replay import replaying
from .state import ATOMS, State
from .training import leaves_of
from .worth import judge

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = [getattr(nn_module, "_global" + name) for name in HOOKS if hasattr(nn_module, "_global" + name)]


def hooks_of(modules):
    """Dictionaries of hooks, which a captured graph would not call: they must be empty, or part of the capture."""
    return [m.__dict__[name] for m in modules for name in HOOKS] + GLOBAL_HOOKS


def inner_hooks(root):
    return hooks_of([m for m in root.modules() if m is not root])


def forward_of(cls):
    """A class's forward as a function that takes the module first, which a static method and a class method do not."""
    if not isinstance(inspect.getattr_static(cls, "forward", None), (staticmethod, classmethod)):
        return cls.forward

    def forward(module, *args, **kwargs):
        return cls.forward(*args, **kwargs)

    return forward


def state_of(module, given, others):
    """The module's state, together with that of what it is given. One of the others serves as well if it is the same:
    shapes share it."""
    given = [c for c in given if type(c) not in ATOMS]
    if not given and others and others[-1].is_of(module) and others[-1].untouched():
        return others[-1]
    return State(module, *given)


def build_entry(module, forward, tensors, nested, settings, others=()):
    """others: states of entries in the same mode."""
    entry = Entry()
    nesting = nested[1] if nested else None
    try:
        with taken(TRACING):
            entry.state = state_of(module, nesting[1] if nesting else (), others)
    except Busy:
        raise
    except Unseen as error:
        entry.reason = str(error)
        return entry
    except Exception as error:  # all kinds of objects are inspected, and some raise errors
        entry.reason = f"its state cannot be read: {type(error).__name__}: {error}"
        return entry
    hooks = hooks_of([m for m in entry.state.objects if isinstance(m, nn.Module)])
    entry.hooks = [h for h in hooks if not h]
    if not all(entry.state.owns(function) for h in hooks for function in h.values()):
        entry.reason = "a submodule has hooks"
        return entry
    for tensor in entry.state.tensors.values():
        if type(tensor) in PLAIN:
            is_param = isinstance(tensor, nn.Parameter) or id(tensor) in entry.state.buffers
            (entry.params if is_param else entry.loose).append(tensor)
    attended = Attended()
    run = stateless(module, forward, entry.state, [*entry.params, *entry.loose], nesting, attended)
    fill_entry(entry, run, tensors, settings)
    if attended.made.clean():
        return refused(entry, "its forward keeps a tensor outside of the module")
    entry.names = tuple(attended.names)
    if (name := next((n for n in entry.names for t in tensors if n in vars(t)), None)) is not None:
        return refused(entry, f"its forward reads {name}, an attribute of an argument")
    entry.asked = entry.wanted(tensors) if attended.asked or entry.names else None
    return entry


def refused(entry, reason):
    """An entry without a capture, in the same state."""
    bare = Entry(entry.state)
    bare.hooks, bare.reason = entry.hooks, entry.reason or reason
    return bare


def stateless(module, forward, state, replaced, nesting, attended=None):
    """run(params, tensors): the call as a function of tensors only, `replaced` ones of the state first."""

    def run(params, given):
        given = [*params, *given]
        stand_ins, args, kwargs = given[: len(replaced)], given[len(replaced) :], {}
        if nesting:
            spec, constants, where = nesting
            leaves = list(constants)
            for i, tensor in zip(where, args):
                leaves[i] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, spec)
        arguments = State((args, kwargs))
        mode = attended or Attended()
        mode.generators = state.generators_held()
        mode.given = given
        mode.made.note(given)
        with state.replaced(replaced, stand_ins):
            with mode:
                result = forward(module, *args, **kwargs)
            mode.judge(pytree.tree_leaves(result), given)
        if (name := arguments.difference()) is not None:
            raise Changed(f"its forward changes an argument{name and ': ' + name}")
        return result

    return run


def fill_entry(entry, run, tensors, settings, keep=True):
    """Captures run(params, tensors) and plans its regions. keep: parameters that are converted, as long as they do not
    change. The regions' kernels are compiled together; where one cannot be, each by itself, to know which."""
    together = settings.effort != "measure"  # which runs every region that is asked about
    try:
        return capture_entry(entry, run, tensors, settings, keep, together)
    except ConvoyError:
        entry.runners, entry.verdicts = [], []
        return capture_entry(entry, run, tensors, settings, keep, False)


def capture_entry(entry, run, tensors, settings, keep, together):
    devices = {t.device for t in tensors} or {t.device for t in entry.params}
    device = next((d for d in devices if d.type in ("cuda", "cpu")), None)
    if device is None:
        entry.reason = f"on {', '.join(map(str, devices))}, neither CPU nor CUDA"
        return entry

    def make_call(region):
        try:
            sources, outputs = (described(n.meta["val"] for n in nodes) for nodes in (region.sources, region.outputs))
            runner = Runner(region.program, sources, outputs, device, settings, deferred=together)
        except ConvoyError as error:
            return None, str(error)
        overwritten = ["overwritten" in node.meta for node in region.sources]
        verdict = judge(region, runner, settings)
        if verdict and not verdict.taken():
            return None, verdict.reason()

        def insert(graph, sources):
            runner.doubts = entry.doubts
            runner.overwritten = overwritten
            entry.runners.append(runner)
            entry.verdicts.append(verdict)
            return graph.call_function(runner, tuple(sources))

        return insert, None

    try:
        entry.capture = capture(run, entry.params, [*entry.loose, *tensors], device, make_call, state=entry.state,
                                keep=keep and not torch.is_grad_enabled())  # fmt: skip
    except Busy:
        raise
    except Changed as error:
        entry.reason = str(error)
        return entry
    except Exception as error:  # whatever the model's code does on fake tensors: it stays in PyTorch
        lines = str(error).strip().splitlines() or [""]
        entry.reason = f"not captured: {type(error).__name__}: {lines[0]}"
        return entry
    compile_plans([runner.plan for runner in entry.runners])
    if entry.runners:
        entry.fixed, whole = [*entry.params, *entry.loose], only_region(entry.capture)
        entry.invoke = invoker(entry.capture, entry.fixed, whole)
        entry.whole = whole if entry.capture.out_spec.is_leaf() and settings.precision != "torch" else None
        replaying(entry, device, settings)
        entry.leaves = leaves_of(entry.capture.graph.graph, lambda target: isinstance(target, Runner))
    else:
        entry.reason = "nothing for Convoy in it"
    entry.capture.forget_trace()
    return entry
