"""From a call of a module to a graph in which regions of Convoy's vocabulary are single nodes.

1. trace       the module runs once on fake tensors of the given shapes; its operators come out as an fx graph whose
               placeholders are the parameters, the buffers and the tensors among the arguments
2. purify      in-place operators become plain ones where nothing can tell, identities and constants are resolved
3. partition   every operator of the vocabulary joins the regions it reads from, as long as no path leaves and
               returns, and nothing with side effects lies between
4. choose      a region that is not worth it is tried without the operators that are not
5. replace     each region worth it becomes one call
"""

import contextlib
import contextvars
import linecache
import operator
import weakref
from dataclasses import dataclass, field

import torch
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from .memory import contiguous
from .program import Program
from .state import Changed
from .training import saving_is_watched
from .vocabulary import SHAPES, Emitter, emit_node, why_not

aten = torch.ops.aten


@dataclass
class Region:
    """What one call computes: a program, the nodes it reads in the order of its sources, and shapes as they came."""

    program: Program
    nodes: list  # of the captured graph
    sources: list
    outputs: list

    def shapes(self):
        return [tuple(n.meta["val"].shape) for n in self.sources]


@dataclass
class Capture:
    graph: GraphModule
    regions: list
    out_spec: object
    n_params: int
    kept: dict = field(default_factory=dict)  # names of nodes that stay in PyTorch, with the reasons


# ---- 1. trace ----------------------------------------------------------------------------------------------------


def trace(function, params, tensors, mode, around=contextlib.nullcontext()):
    """function(params, tensors) -> any nest of tensors. Gives the fx graph and how its flat outputs are nested.
    around: what must hold while the module's code runs."""
    spec = None

    def flat(*given):
        nonlocal spec
        outputs, spec = pytree.tree_flatten(function(given[: len(params)], given[len(params) :]))
        return outputs

    # Tensors that are neither parameters nor arguments, kept in plain attributes, become constants of the graph.
    tracer = make_fx(flat, tracing_mode=mode, pre_dispatch=True, _allow_non_fake_inputs=True)
    # In a context of its own: PyTorch's settings leave a variable in it for every trace, for ever.
    with around, unwatched_saving():
        captured = contextvars.copy_context().run(tracer, *params, *tensors)
    forget_source(source_name(captured))
    return captured, spec


def unwatched_saving():
    """Activation checkpointing counts what autograd saves: nothing of a trace."""
    if not saving_is_watched():
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def source_name(module):
    return type(module).forward.__code__.co_filename


def forget_source(name):
    """fx keeps the text of every function that it writes, for tracebacks, for ever."""
    linecache.cache.pop(name, None)
    getattr(getattr(torch.fx.graph_module, "_loader", None), "eval_cache", {}).pop(name, None)


# ---- 2. purify ---------------------------------------------------------------------------------------------------


def functional_twin(node):
    """The operator without the underscore, for one that changes its first argument in place."""
    packet = node.target._schema.name.partition("::")[2]
    if not packet.endswith("_") or packet.startswith("__"):
        return None
    return getattr(getattr(aten, packet[:-1], None), node.target._overloadname, None)


def is_view(node):
    """Does the result share memory with an argument? Aliases are marked in the schema; some operators only may."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op != "placeholder" and node.op != "get_attr"
    may = (aten.reshape.default, aten.flatten.using_ints, aten.contiguous.default, aten.to.dtype)
    return node.target in may or any(r.alias_info is not None for r in node.target._schema.returns)


def is_mutable(node):
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def resolve_in_place(graph):
    """x.op_() becomes y = op(x) with y instead of x from there on, if x is a fresh result that nobody has a view of."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not is_mutable(node):
            continue
        twin, target = functional_twin(node), node.args[0] if node.args else None
        if twin is None or not isinstance(target, Node):
            continue
        if target.op != "call_function" or is_view(target) or any(is_view(u) for u in target.users if u is not node):
            continue
        node.target = twin
        order = {n: i for i, n in enumerate(graph.nodes)}
        target.replace_all_uses_with(node, delete_user_cb=lambda user: order[user] > order[node])


DROPOUTS = {getattr(aten, kind + "dropout" + end).default
            for kind in ("", "feature_", "alpha_", "feature_alpha_") for end in ("", "_")}  # fmt: skip


def resolve_identities(graph):
    """Dropout outside training gives its argument itself, in place or not."""
    for node in list(graph.nodes):
        if node.target in DROPOUTS and not node.args[2]:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def resolve_constants(module):
    """Marks tensors without dimensions that the forward made from numbers: they are written as numbers. What it only
    found, in a variable of its surroundings, may be another number tomorrow."""
    for node in module.graph.nodes:
        if node.target in (aten.lift_fresh_copy.default, aten.lift_fresh.default):
            value = getattr(module, node.args[0].target, None) if node.args[0].op == "get_attr" else None
            if isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu":
                if value.dtype in (torch.float32, torch.int64) and not value.requires_grad:
                    node.meta["number"] = value.item()
        elif node.target is aten.detach.default and "number" in node.args[0].meta:
            node.meta["number"] = node.args[0].meta["number"]


def origin(node):
    """The node whose memory this one shows."""
    while node.op == "call_function" and (is_view(node) or is_mutable(node)) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def changed_in_place(graph, names):
    """The name of a parameter, buffer or other tensor of the module that the forward changes in place and reads as
    well. names: of the first placeholders. Its regions would keep for gradients what is no longer there; counters that
    nothing else reads (a batch norm's) do no harm."""
    named = dict(zip((n for n in graph.nodes if n.op == "placeholder"), names))
    for node in graph.nodes:
        if node.op != "call_function" or not is_mutable(node):
            continue
        for argument, given in zip(node.target._schema.arguments, node.args):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Node):
                found = origin(given)
                if found.op == "get_attr" or (found in named and (len(found.users) > 1 or node.users)):
                    return named.get(found, "a tensor that it does not own")
    return None


def purify(module):
    graph = module.graph
    resolve_identities(graph)
    resolve_in_place(graph)
    resolve_constants(module)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not is_barrier(node) and not has_effects(node):
            graph.erase_node(node)
    graph.lint()


def has_effects(node):
    """Batch statistics are updated without saying so in the schema; random numbers advance their generator."""
    if node.target is operator.getitem:
        return False
    if node.target in (aten.batch_norm.default, aten.instance_norm.default):
        return True
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


# ---- strides -----------------------------------------------------------------------------------------------------

ANEW = {getattr(aten, name) for name in ("log_softmax", "layer_norm", "instance_norm", "rms_norm")}


def is_ambiguous(value):
    """Contiguous, with other strides along dimensions of one element than a new tensor would have."""
    if not isinstance(value, torch.Tensor) or not value.is_contiguous():
        return False
    return value.numel() > 0 and value.stride() != contiguous(value.shape)


def is_like_channels_last(x):
    """PyTorch's own test: strides rise from the channels over the last dimension to the first."""
    least = 0
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if x.stride(d) < least or (d == 0 and least == x.stride(1)):
            return False
        least = x.stride(d) * x.shape[d]
    return x.dim() in (4, 5)


def settled(node, value):
    """The result with the strides that PyTorch gives it. Pointwise operators make a new tensor for contiguous arguments
    of one shape, group_norm goes by its argument's; on fake tensors some keep strides that only look alike."""
    if not is_ambiguous(value) or is_view(node):
        return value
    packet = getattr(node.target, "overloadpacket", None)
    if packet is aten.group_norm and is_like_channels_last(node.args[0].meta["val"]):
        last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
        return torch.empty_like(value, memory_format=last)
    if packet is aten.group_norm or packet in ANEW or (is_pointwise(node) and of_one_shape(node, value)):
        return torch.empty_like(value, memory_format=torch.contiguous_format)
    return value


def of_one_shape(node, value):
    """Are all arguments contiguous tensors of the result's shape? A number beside a tensor counts as one without
    dimensions."""
    schema = node.target._schema
    given = [x for a, x in zip(schema.arguments, node.args) if "Tensor" in str(a.type)]
    tensors = [x.meta.get("val") for x in given if isinstance(x, Node)]
    if len(tensors) < len(given) or schema.overload_name == "Scalar":
        return False
    return all(isinstance(t, torch.Tensor) and t.shape == value.shape and t.is_contiguous() for t in tensors)


def settle_strides(module):
    """Strides as PyTorch will have them. A convolution decides by them how it lays out its result, so one dimension of
    one element can turn round everything that follows."""
    graph = module.graph
    fakes = [n.meta.get("val") for n in graph.nodes]
    mode = next((v.fake_mode for v in fakes if isinstance(v, FakeTensor)), None)
    if mode is None or not any(map(is_ambiguous, fakes)):
        return
    with mode, torch.no_grad():
        for node in graph.nodes:
            if node.target is not operator.getitem and not isinstance(node.target, torch._ops.OpOverload):
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: value_of(module, n))
            node.meta["val"] = settled(node, node.target(*args, **kwargs))


def value_of(module, node):
    return getattr(module, node.target) if node.op == "get_attr" else node.meta["val"]


# ---- 3. partition ------------------------------------------------------------------------------------------------


def is_barrier(node):
    """Nothing may move from one side of it to the other: it changes a tensor, or PyTorch's state."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return is_mutable(node) or not isinstance(node.target, torch._ops.OpOverload)


class Groups:
    """Regions as they grow: disjoint sets of nodes, with every set's inputs, to find paths that leave and return."""

    def __init__(self):
        self.of, self.members, self.inputs = {}, {}, {}

    def add(self, node):
        self.of[node] = node
        self.members[node] = [node]
        self.inputs[node] = set(node.all_input_nodes)

    def reaches(self, start, goal):
        """Is there a path from `goal` to `start` through a third group?"""
        waiting, seen = [self.of[n] for n in self.inputs[start]], {start}
        waiting = [g for g in waiting if g is not goal and g is not start]
        while waiting:
            group = waiting.pop()
            if group is goal:
                return True
            if group not in seen:
                seen.add(group)
                waiting += [self.of[n] for n in self.inputs[group]]
        return False

    def merge(self, first, second):
        for node in self.members[second]:
            self.of[node] = first
        self.members[first] += self.members.pop(second)
        self.inputs[first] = {n for n in self.inputs[first] | self.inputs.pop(second) if self.of[n] is not first}


def candidates(graph, device, kept):
    """Nodes of the vocabulary. `kept` receives the reasons for the others."""
    found = set()
    for node in graph.nodes:
        if node.op != "call_function" or "number" in node.meta:
            continue
        reason = why_not(node, device)
        if not reason:
            found.add(node)
        elif node.target is not operator.getitem:
            kept[node] = reason
    return found


def partition(graph, wanted):
    """The wanted nodes as regions: lists of nodes in graph order."""
    groups, segment, where, taken = Groups(), 0, {}, set()
    for node in graph.nodes:
        groups.add(node)
        segment += is_barrier(node)
        where[node] = segment
        if node not in wanted:
            continue
        taken.add(node)
        for source in node.all_input_nodes:
            a, b = groups.of[source], groups.of[node]
            if source in taken and where[source] == segment and a is not b:
                if not groups.reaches(b, a) and not groups.reaches(a, b):
                    groups.merge(a, b)
    order = {n: i for i, n in enumerate(graph.nodes)}
    return [sorted(m, key=order.get) for g, m in groups.members.items() if g in taken]


def trim(nodes):
    """Without operators at the borders that only rename a shape: PyTorch does those for nothing."""
    inside = set(nodes)
    changed = True
    while changed:
        changed = False
        for node in list(inside):
            if shape_only(node) and (
                not any(u in inside for u in node.users) or not any(s in inside for s in node.all_input_nodes)
            ):
                inside.remove(node)
                changed = True
    return [n for n in nodes if n in inside]


def shape_only(node):
    name = getattr(node.target, "_schema", None)
    return name is not None and name.name.partition("::")[2].strip("_") in SHAPES | {"view", "unsafe_view"}


def more_than_one(nodes):
    """A single pointwise operator is no better here than there."""
    busy = [n for n in nodes if n.target is not operator.getitem and not shape_only(n)]
    return len(busy) > 1 or any(not is_pointwise(n) for n in busy)


def is_pointwise(node):
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


# ---- 4. choose ---------------------------------------------------------------------------------------------------


class Chooser:
    """Which nodes become regions. `make_call(region)` gives what inserts its call, or None and the reason."""

    def __init__(self, graph, is_param, make_call, kept):
        self.order = {n: i for i, n in enumerate(graph.nodes)}
        self.is_param, self.make_call, self.kept = is_param, make_call, kept

    def attempt(self, nodes):
        """((region, call), None), or (None, the reason)."""
        nodes = trim(nodes)
        if not more_than_one(nodes):
            return None, "a single operator that PyTorch does as well"
        region = make_region(nodes, self.is_param)
        if not unique_outputs(region):
            return None, "gives one value twice"
        call, reason = self.make_call(region)
        return ((region, call), None) if call is not None else (None, reason)

    def choose(self, nodes):
        """Regions of these nodes: one of all of them, or of the pieces that are worth it, or none."""
        whole, reason = self.attempt(nodes)
        if whole:
            return [whole]
        parts = pieces(nodes)
        if len(parts) == 1:
            self.keep(nodes, reason)
            return []
        found, run, taken = [], [], []
        for part in [*parts, None]:
            piece, reason = self.attempt(part) if part else (None, None)
            if piece:
                run.append(part)
                taken.append(piece)
                continue
            found += self.join(run, taken)
            run, taken = [], []
            self.keep(part or (), reason)
        return found

    def join(self, parts, taken):
        """Pieces next to each other as one region, if that is worth it too."""
        nodes = sorted((n for part in parts for n in part), key=self.order.get)
        whole = self.attempt(nodes)[0] if len(parts) > 1 else None
        return [whole] if whole else taken

    def keep(self, nodes, reason):
        self.kept.update((n, reason) for n in trim(nodes))


def is_heavy(node):
    """More than pointwise, and more than another name of the same numbers."""
    return not is_pointwise(node) and not shape_only(node) and node.target is not operator.getitem


def pieces(nodes):
    """A region cut after every heavy operator and what follows it, up to the next one. No piece reads from a later
    one, so pieces next to each other can be put together again."""
    parts, heavy, of = [], [], {}
    for node in nodes:
        home = max((of[s] for s in node.all_input_nodes if s in of), default=None)
        if home is None or (is_heavy(node) and heavy[home]):
            home = len(parts)
            parts.append([])
            heavy.append(False)
        parts[home].append(node)
        heavy[home] |= is_heavy(node)
        of[node] = home
    return parts


# ---- 5. replace --------------------------------------------------------------------------------------------------


def make_region(nodes, is_param):
    inside, sources = set(nodes), {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside and "number" not in source.meta:
                sources.setdefault(source, None)
    # Views of a result stay views of it: only values that somebody outside reads are outputs.
    outputs = [n for n in nodes if any(u not in inside for u in n.users) and not pair(n)]
    program, numbers = Program(), {}
    for source in sources:
        numbers[source] = program.source(source in is_param)
    emit = Emitter(program, numbers.__getitem__)
    for node in nodes:
        numbers[node] = emit_node(emit, node)
    program.outputs = [numbers[n] for n in outputs]
    return Region(program, nodes, list(sources), outputs)


def pair(node):
    return isinstance(node.meta.get("val"), (tuple, list))


def unique_outputs(region):
    """The library gives every value once."""
    return len(set(region.program.outputs)) == len(region.outputs)


def replace(graph, region, insert):
    """One call, by insert(graph, sources), behind the last source and the first node. What reads the results may
    stand in front of it: sort_graph() puts that right, since no path leaves a region and returns. Gives the nodes
    that stand for the outputs now."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    last = max(region.sources, key=order.get)
    anchor = max(last, region.nodes[0], key=order.get)
    with graph.inserting_after(anchor):
        call = insert(graph, region.sources)
    after = call
    made = {}
    for i, output in enumerate(region.outputs):
        with graph.inserting_after(after):
            after = made[output] = graph.call_function(operator.getitem, (call, i))
        after.meta = dict(output.meta)
        output.replace_all_uses_with(after)
    for node in reversed(region.nodes):
        for user in list(node.users):  # indices of max.dim that nobody reads
            graph.erase_node(user)
        graph.erase_node(node)
    return made


def sort_graph(graph):
    """Moves every node behind what it reads, keeping the order otherwise."""
    placed, order = set(), list(graph.nodes)

    def place(node):
        stack = [node]
        while stack:
            top = stack[-1]
            missing = [n for n in top.all_input_nodes if n not in placed]
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


def capture(function, params, tensors, device, make_call, mode="fake", state=None):
    """Traces a call and replaces its regions. make_call(region) gives what inserts the call, or None with the reason
    why the region stays in PyTorch; it may be asked about regions that are not taken in the end. state: that of the
    module whose call it is."""
    module, spec = trace(function, params, tensors, mode, state.traced() if state else contextlib.nullcontext())
    purify(module)
    graph = module.graph
    names = [state.names[id(t)] for t in [*params, *tensors] if id(t) in state.names] if state else []
    if state and (name := changed_in_place(graph, names)):
        raise Changed(f"its forward changes {name} in place and reads it")
    settle_strides(module)
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    is_param = set(placeholders[: len(params)])
    found = Capture(module, [], spec, len(params))
    chooser = Chooser(graph, is_param, make_call, found.kept)
    wanted = candidates(graph, device, found.kept)
    chosen = [c for nodes in partition(graph, wanted) for c in chooser.choose(nodes)]
    made = {}
    for region, call in chosen:
        region.sources = [made.get(n, n) for n in region.sources]
        made |= replace(graph, region, call)
        found.regions.append(region)
    sort_graph(graph)
    graph.lint()
    module.recompile()
    weakref.finalize(module, forget_source, source_name(module))
    return found
