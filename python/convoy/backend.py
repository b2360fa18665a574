"""torch.compile(model, backend="convoy"): regions of the captured graph run in Convoy, the rest in PyTorch.

Dynamo finds it through the entry point of the installed package; in a source tree
`backend=convoy.backend.compile_graph` does the same.
"""

import contextlib

import torch
from torch import nn
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.utils import _pytree as pytree

from .attended import Attended
from .building import fill_entry
from .entry import Entry
from .kinds import kind_of
from .leaks import collected_at_once
from .module import MOST_ENTRIES, ordinary_world
from .settings import Settings


MOST_NUMBERS = 8  # sets of numbers that one graph is captured for


class CompiledGraph:
    """A graph of Dynamo as a function of the same arguments: parameters, other tensors, sizes, numbers."""

    def __init__(self, module, examples, settings):
        self.module, self.settings, self.entries = module, settings, {}
        self.is_param = [is_parameter(e) for e in examples]
        self.wrapped, self.numbers = wrapped_numbers(module.graph), set()
        self.differentiates = any(map(differentiates, nodes_within(module)))

    def __call__(self, *args):
        if self.differentiates or not ordinary_world():
            return self.module(*args)
        numbers = tuple(args[i].item() for i in self.wrapped)
        spelled = tuple(map(repr, numbers))  # 0.0 and -0.0 are equal but not the same
        if spelled not in self.numbers and len(self.numbers) < MOST_NUMBERS:
            self.numbers.add(spelled)
        if spelled not in self.numbers:
            return self.module(*args)
        try:
            key = self.settings.ambient(), torch.is_grad_enabled(), spelled, *map(told, args)
        except RuntimeError:  # a layout without strides
            return self.module(*args)
        entry = self.entries.get(key)
        if entry is None or entry.doubts:
            while len(self.entries) >= MOST_ENTRIES:
                del self.entries[next(iter(self.entries))]
            entry = self.entries[key] = self.make(args, numbers)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if entry.invoke is None or entry.left_to_autograd([tensors[p] for p in entry.positions]):
            return self.module(*args)
        return entry.invoke(tensors)

    def make(self, args, numbers):
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        order = [i for i in tensors if self.is_param[i]] + [i for i in tensors if not self.is_param[i]]

        def run(params, given):
            full = list(args)
            for i, tensor in zip(order, [*params, *given]):
                full[i] = tensor
            mode = Attended()
            with mode:
                results = WithNumbers(self.module, dict(zip(self.wrapped, numbers))).run(*full)
            mode.judge(pytree.tree_leaves(results), full)
            return results

        entry = Entry()
        entry.params = [args[i] for i in order if self.is_param[i]]
        with collected_at_once():
            entry = fill_entry(entry, run, [args[i] for i in order if not self.is_param[i]], self.settings)
        if entry.invoke is not None:
            entry.positions = [tensors.index(i) for i in order]
            entry.invoke = by_position(entry.capture, entry.positions)
            entry.params = []  # they come with every call: nothing is kept alive
        return entry


def wrapped_numbers(graph):
    """Positions of arguments that Dynamo passes as tensors although they are only used as numbers: with dynamic=True
    every float of a model, an `eps` as well, in case it changes."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    return [i for i, n in enumerate(placeholders) if n.users and all(is_item(u) for u in n.users)]


def is_item(node):
    return node.op == "call_method" and node.target == "item"


# Modules whose functions and operators say how derivatives are computed, or which are.
DERIVATIVES = ("torch._functorch", "torch._C._functorch", "torch.autograd", "torch._C._autograd",
               "torch._higher_order_ops.register_hook")  # fmt: skip


def differentiates(node):
    """Is the node about derivatives: a transform of torch.func, an autograd.Function, a hook, inference mode? A trace
    records only what it computes, and may leave PyTorch inside a transform."""
    if node.op != "call_function" or isinstance(node.target, torch._ops.OpOverload):
        return False
    homes = [getattr(node.target, "__module__", None) or "", type(node.target).__module__]
    return any(home == name or home.startswith(name + ".") for home in homes for name in DERIVATIVES)


def nodes_within(module):
    """Those of a graph, and of the graphs that its operators call."""
    return [n for m in module.modules() if isinstance(m, torch.fx.GraphModule) for n in m.graph.nodes]


class WithNumbers(torch.fx.Interpreter):
    """Runs the graph with the numbers as constants, inside the autocasts that it enters. numbers: by position of the
    argument."""

    def __init__(self, module, numbers):
        super().__init__(module)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.items = {user: number for i, number in numbers.items() for user in placeholders[i].users}

    def run(self, *args):
        with contextlib.ExitStack() as self.entered:
            return super().run(*args)

    def run_node(self, node):
        if node in self.items:
            return self.items[node]
        # A trace writes down calls of these two functions and does not make them.
        if node.target is _enter_autocast:
            inside = self.entered.enter_context(contextlib.ExitStack())
            inside.enter_context(torch.autocast(*node.args))
            return inside
        if node.target is _exit_autocast:
            return self.env[node.args[0]].close()
        return super().run_node(node)


def by_position(found, positions):
    """The captured graph on tensors in the order of the arguments."""
    forward, spec = found.graph.forward, found.out_spec
    return lambda tensors: pytree.tree_unflatten(forward(*[tensors[p] for p in positions]), spec)


def is_parameter(example):
    return isinstance(example, nn.Parameter) or getattr(example, "_dynamo_static_input_type", None) is not None


def told(argument):
    """What an argument is recognised by."""
    return kind_of(argument) if isinstance(argument, torch.Tensor) else argument


def compile_graph(module, examples, **options):
    """options: those of convoy.compile()."""
    return CompiledGraph(module, examples, Settings.of(options.get("options") or {}))
