"""From a call of a module to a graph in which regions of Convoy's vocabulary are single nodes.

1. trace       the module runs once on fake tensors of the given shapes; its operators come out as an fx graph whose
               placeholders are the parameters, the buffers and the tensors among the arguments
2. purify      in-place operators become plain ones if the difference cannot be seen, identities and constants are resolved (purify.py)
3. casts       what autocast converts becomes nodes (autocast.py)
4. partition   every operator of the vocabulary joins the regions it reads from, as long as no path leaves and
               returns, and nothing with side effects lies between
5. choose      a region that is not worth it is tried again without the operators that are not (both: partition.py)
6. replace     each region worth it becomes one call
"""

import contextlib
import contextvars
import linecache
import logging
import operator
import weakref
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .autocast import erase_idle_casts, write_casts
from .converted import conversions, keep_conversions
from .direct import direct
from .leaks import collected_at_once
from .partition import Chooser, candidates, frozen_apart, partition
from .purify import before, changed_in_place, draws, mark_overwritten, purify, settle_strides
from .reasons import Changed
from .short_norms import name_whole
from .training import needing_gradients, saving_is_watched
from .vocabulary import RULES

with collected_at_once():  # make_fx would import them in the first call, which takes longer than all else in that call
    import torch._dynamo
    import torch._inductor.config


class Kept(NamedTuple):
    """A node that stays in PyTorch, after its graph is gone."""

    name: str
    target: object


@dataclass
class Capture:
    graph: GraphModule
    regions: list
    out_spec: object
    n_params: int
    kept: dict = field(default_factory=dict)  # names of nodes that stay in PyTorch, with the reasons
    converted: list = field(default_factory=list)  # parameters in another dtype (converted.py)

    def forget_trace(self):
        """Frees data that only the choice of regions needed: their operators, and a fake tensor for every value."""
        self.regions = []
        for node in self.graph.graph.nodes:
            node.meta.clear()

    def forget_graph(self):
        """Frees the graph, whose code is enough to run it: one of many shapes is kept for readers."""
        self.kept = {Kept(n.name, n.target): reason for n, reason in self.kept.items()}
        self.graph._graph = None


# ---- trace ----------------------------------------------------------------------------------------------------

# What a graph returns as it is, besides tensors. Of others (a torch.Size, a class derived from dict) it keeps only contents.
RETURNED = {bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}


def trace(function, params, tensors, mode, around=contextlib.nullcontext()):
    """function(params, tensors) -> any nest of tensors. Gives the fx graph and how its flat outputs are nested.
    around: what must hold while the module's code runs."""
    spec = None

    def flat(*given):
        nonlocal spec
        outputs, spec = pytree.tree_flatten(function(given[: len(params)], given[len(params) :]))
        kinds = {type(x) for x in outputs if not isinstance(x, torch.Tensor)} - RETURNED
        if kinds or pytree.tree_structure(pytree.tree_unflatten(outputs, spec)) != spec:
            raise Changed(f"its forward returns a {kinds.pop().__name__ if kinds else 'torch.Size'}")
        return outputs

    # Tensors that are neither parameters nor arguments, kept in plain attributes, become constants of the graph.
    tracer = make_fx(flat, tracing_mode=mode, pre_dispatch=True, _allow_non_fake_inputs=True)
    # In a separate context, because PyTorch's settings leave a variable in it after every trace.
    with around, unwatched_saving(), same_grad_mode(), unlogged(logging.getLogger(FakeTensorMode.__module__)):
        captured = contextvars.copy_context().run(tracer, *distinct([*params, *tensors]))
    forget_source(source_name(captured))
    name_whole(captured.graph)
    if any(isinstance(getattr(captured, n.target), FakeTensor) for n in captured.graph.nodes if n.op == "get_attr"):
        raise RuntimeError("a tensor that was created in a way that the trace does not see")
    return captured, spec


@contextlib.contextmanager
def unlogged(log):
    """Fake tensors write the traceback of every error to the log. A call with a wrong shape then runs in PyTorch, whose error
    is the one to read."""
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


@contextlib.contextmanager
def same_grad_mode():
    """A forward that switches gradients off may fail, on fake tensors only, before it switches them on."""
    grad = torch.is_grad_enabled()
    try:
        yield
    finally:
        if torch.is_grad_enabled() != grad:  # else an export would write it down
            torch._C._set_grad_enabled(grad)


def distinct(tensors):
    """A trace identifies tensors as objects: one that is passed twice would be read from one place, and so would two
    different ones in a later call."""
    seen, given = set(), []
    for tensor in tensors:
        given.append(tensor.detach().requires_grad_(tensor.requires_grad) if id(tensor) in seen else tensor)
        seen.add(id(tensor))
    return given


def unwatched_saving():
    """Activation checkpointing counts what autograd saves, and must not count a trace."""
    if not saving_is_watched():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def forget_operators():
    """Fake tensors never forget the result of any operator for any shape: 130 KB for one trace of a ResNet-18."""
    getattr(FakeTensorMode, "cache_clear", lambda: None)()


def source_name(module):
    return type(module).forward.__code__.co_filename


def forget_source(name):
    """fx never frees the text of the functions that it writes; it keeps them for tracebacks."""
    linecache.cache.pop(name, None)
    getattr(getattr(torch.fx.graph_module, "_loader", None), "eval_cache", {}).pop(name, None)


# ---- replace --------------------------------------------------------------------------------------------------


def replace(graph, region, insert, calls):
    """One call, by insert(graph, sources), after the last source and the first node. What reads the results may
    come before it: sort_graph() puts that right, since no path leaves a region and returns. Gives the nodes
    that stand for the outputs now. calls: the call joins them."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    last = max(region.sources, key=order.get)
    anchor = max(last, region.nodes[0], key=order.get)
    with graph.inserting_after(anchor):
        call = insert(graph, region.sources)
    calls.add(call)
    after = call
    made = {}
    for i, output in enumerate(region.outputs):
        with graph.inserting_after(after):
            after = made[output] = graph.call_function(operator.getitem, (call, i))
        after.meta = dict(output.meta)
        output.replace_all_uses_with(after)
    for node in reversed([n for n in region.nodes if n not in region.views]):
        for user in list(node.users):  # unused indices of max.dim
            graph.erase_node(user)
        graph.erase_node(node)
    return made


def sort_graph(graph):
    """Moves every node after what it reads, keeping the order otherwise."""
    placed, order, previous = set(), list(graph.nodes), draws(graph)

    def place(node):
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [n for n in before(top, previous) if n not in placed]
            if top in placed:
                stack.pop()
            elif missing:
                stack += missing
            else:
                placed.add(stack.pop())
                yield top

    sequence = [n for node in order for n in place(node)]
    previous = sequence[0]
    for node in sequence[1:]:
        if previous.next is not node:
            previous.append(node)
        previous = node


def capture(function, params, tensors, device, make_call, mode="fake", state=None, keep=False):
    """Traces a call and replaces its regions. make_call(region) gives what inserts the call, or None with the reason
    why the region stays in PyTorch; it may be asked about regions that are not taken in the end. state: that of the
    module whose call it is. keep: parameters that are converted are kept (converted.py)."""
    module, spec = trace(function, params, tensors, mode, state.traced() if state else contextlib.nullcontext())
    purify(module)
    graph = module.graph
    names = [state.names[id(t)] for t in [*params, *tensors] if id(t) in state.names] if state else []
    if state and (name := changed_in_place(graph, names)):
        raise Changed(f"its forward changes {name} in place and reads it")
    settle_strides(module)
    mark_overwritten(graph)
    write_casts(graph, RULES)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    is_param = set(placeholders[: len(params)])
    kept = conversions(graph, is_param) if keep else set()
    is_param |= kept
    found = Capture(module, [], spec, len(params))
    chooser = Chooser(graph, is_param, make_call, found.kept)
    wanted = candidates(graph, device, is_param, found.kept)
    trained = needing_gradients(graph, [*params, *tensors])
    parts = [part for nodes in partition(graph, wanted) for part in frozen_apart(nodes, trained)]
    chosen = [c for part in parts for c in chooser.choose(part)]
    made, calls = {}, set()
    for region, call in chosen:
        region.sources = [made.get(n, n) for n in region.sources]
        made |= replace(graph, region, call, calls)
        found.regions.append(region)
    erase_idle_casts(graph, calls.__contains__)
    found.converted = keep_conversions(graph, kept, calls.__contains__)
    found.kept = {n: reason for n, reason in found.kept.items() if n in set(graph.nodes)}
    sort_graph(graph)
    graph.lint()
    with direct(graph):
        module.recompile()
    weakref.finalize(module, forget_source, source_name(module))
    forget_operators()
    return found
