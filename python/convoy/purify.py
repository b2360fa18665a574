"""Removes from captured graphs what would prevent regions: in-place operators become plain ones if the difference cannot be seen,
identities and constants are resolved, and results get the strides that they will have.
"""

import operator

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from .autocast import as_it_runs, fake_mode
from .vocabulary import CONVERSIONS
from .memory import contiguous

aten = torch.ops.aten


def functional_twin(node):
    """The operator without the underscore, for one that changes its first argument in place. Some (copy) only exist for
    compilers, and have no derivative."""
    space, _, packet = node.target._schema.name.partition("::")
    if space != "aten" or not packet.endswith("_") or packet.startswith("__"):
        return None
    if not any(hasattr(place, packet[:-1]) for place in (torch, torch.Tensor, torch._C._nn)):
        return None
    twins = getattr(aten, packet[:-1], None)
    overloads = (getattr(twins, name) for name in (twins.overloads() if twins else ()))
    return next((o for o in overloads if taken_by(o) == taken_by(node.target)), None)


def taken_by(overload):
    """Names and types of its arguments: overloads of one name may take others (pow.Scalar and pow_.Scalar do)."""
    return [(a.name, str(a.type)) for a in overload._schema.arguments]


# Operators whose results may be views, and whose schemas do not say so in every PyTorch.
MAY_VIEW = {aten.reshape, aten.flatten, aten.contiguous, aten.to, aten.type_as, aten.einsum, aten.broadcast_tensors, aten.meshgrid,
            aten.atleast_1d, aten.atleast_2d, aten.atleast_3d}  # fmt: skip


def is_view(node):
    """Does the result share memory with an argument? Aliases are marked in the schema; some operators only may, and dropout
    of nothing returns its argument without saying so."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.op != "placeholder" and node.op != "get_attr"
    if node.target.overloadpacket in MAY_VIEW or any(r.alias_info is not None for r in node.target._schema.returns):
        return True
    return any(torch._C._is_alias_of(a, b) for a in values_of(node) for n in node.all_input_nodes for b in values_of(n))


def values_of(node):
    """Its tensors in the trace."""
    return [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]


def is_mutable(node):
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def is_barrier(node):
    """It changes a tensor or PyTorch's state, so nothing may be moved across it."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return not isinstance(node.target, torch._ops.OpOverload) or is_mutable(node) or bool(written(node))


def is_pointwise(node):
    return node.target in CONVERSIONS or torch.Tag.pointwise in getattr(node.target, "tags", ())


def gives_its_like(twin, node, module):
    """Would the plain operator give a tensor like the one that is changed? In place, a result is converted to that one's
    dtype and written in its layout."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: value_of(module, n))
    result, target = twin(*args, **kwargs), args[0]
    if not isinstance(result, torch.Tensor) or result.layout != target.layout:
        return False
    return (result.dtype, result.shape, result.stride()) == (target.dtype, target.shape, target.stride())


def in_place(graph, grad):
    """(operator, the functional one, its target) for operators that change a fresh result that has no views, each inside
    the autocast that it runs in. If gradients were switched on or off since, the target keeps its old derivative.
    grad: are they enabled at first?"""
    modes = {}
    for node in as_it_runs(graph):
        grad = node.args[0] if node.target is torch._C._set_grad_enabled else grad
        modes[node] = grad
        if node.op != "call_function" or not is_mutable(node):
            continue
        twin, target = functional_twin(node), node.args[0] if node.args else None
        if twin is None or not isinstance(target, Node) or modes[target] != grad:
            continue
        if target.op == "call_function" and not is_view(target) and not any(is_view(u) for u in target.users if u is not node):
            yield node, twin, target


def resolve_in_place(module):
    """x.op_() becomes y = op(x) with y instead of x from there on, if the difference cannot be seen."""
    graph = module.graph
    mode, grad = fake_mode(graph), torch.is_grad_enabled()
    if mode is None:
        return
    with torch._C.DisableTorchFunction(), mode, torch.no_grad():  # an export would write down the latter
        for node, twin, target in in_place(graph, grad):
            if not gives_its_like(twin, node, module):
                continue
            node.target = twin
            order = {n: i for i, n in enumerate(graph.nodes)}
            target.replace_all_uses_with(node, delete_user_cb=lambda user: order[user] > order[node])


DROPOUTS = {getattr(aten, kind + "dropout" + end).default
            for kind in ("", "feature_", "alpha_", "feature_alpha_") for end in ("", "_")}  # fmt: skip


def is_identity(node):
    """Dropout outside training returns its argument itself, in place or not, and so does one that drops nothing, or a
    conversion to the same dtype."""
    if node.target in DROPOUTS:
        return not node.args[2] or node.args[1] == 0
    if node.target is aten.to.dtype and len(node.args) == 2 and not node.kwargs:
        return node.args[0].meta["val"].dtype == node.args[1]
    return False


def resolve_identities(graph):
    for node in list(graph.nodes):
        if is_identity(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


SPLITS = {aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int}


def resolve_splits(graph):
    """A part of a tensor that was cut into several is a slice of it."""
    for node in list(graph.nodes):
        if node.target not in SPLITS or any(u.target is not operator.getitem for u in node.users):
            continue
        dim = (*node.args, 0)[1] if node.target is aten.unbind.int else (*node.args[2:], node.kwargs.get("dim", 0))[0]
        lengths = [1 if node.target is aten.unbind.int else part.shape[dim] for part in node.meta["val"]]
        for user in list(node.users):
            start = sum(lengths[: user.args[1]])
            with graph.inserting_before(user):
                if node.target is aten.unbind.int:
                    part = graph.call_function(aten.select.int, (node.args[0], dim, start))
                else:
                    part = graph.call_function(aten.slice.Tensor, (node.args[0], dim, start, start + lengths[user.args[1]]))
            part.meta = dict(user.meta)
            user.replace_all_uses_with(part)
            graph.erase_node(user)
        graph.erase_node(node)


def resolve_broadcasts(graph):
    """Losses broadcast their arguments: one that already has the common shape stays as it is."""
    for node in list(graph.nodes):
        if node.target is not aten.broadcast_tensors.default or any(u.target is not operator.getitem for u in node.users):
            continue
        for user in list(node.users):
            given = node.args[0][user.args[1]]
            if given.meta["val"].shape == user.meta["val"].shape:
                user.replace_all_uses_with(given)
                graph.erase_node(user)
        if not node.users:
            graph.erase_node(node)


def resolve_constants(module):
    """Marks tensors without dimensions that the forward made from numbers: they are written as numbers. What it only
    found, in a variable of its surroundings, may be another number tomorrow, and what it changes is another one after that."""
    varying = {found for _, found in changed(module.graph)}
    for node in module.graph.nodes:
        if origin(node) in varying:
            continue
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


# Norms that update running statistics without saying so in the schema, and the argument that says whether they do.
NORMS = {aten.batch_norm.default: "training", aten.instance_norm.default: "use_input_stats"}


def written(node):
    """The arguments that an operator changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = node.target._schema.arguments
    given = {**dict(zip((a.name for a in arguments), node.args)), **node.kwargs}
    marked = [given.get(a.name) for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if given.get(NORMS.get(node.target)):
        marked += [given.get("running_mean"), given.get("running_var")]
    return [x for x in pytree.tree_leaves(marked) if isinstance(x, Node)]


def changed(graph):
    """(node, where the memory is from that it changes in place)"""
    return [(n, origin(x)) for n in graph.nodes if n.op == "call_function" for x in written(n)]


def mark_overwritten(graph):
    """Nodes whose memory a later one changes in place get a mark."""
    last = {found: i for i, node in enumerate(graph.nodes) if node.op == "call_function" for found in map(origin, written(node))}
    for i, node in enumerate(graph.nodes if last else ()):
        if last.get(origin(node), -1) > i:
            node.meta["overwritten"] = True


def changes_argument(graph):
    return any(found.op == "placeholder" for _, found in changed(graph))


def changed_in_place(graph, names):
    """The name of a parameter, buffer or other tensor of the module that the forward changes in place and reads as
    well. names: of the first placeholders. Its regions would keep for gradients what is no longer there; counters that
    nothing else reads (a batch norm's) do no harm."""
    named = dict(zip((n for n in graph.nodes if n.op == "placeholder"), names))
    for node, found in changed(graph):
        read = len(found.users) > 1 or (node.users and is_mutable(node))
        if found.op == "get_attr" or (found in named and read):
            return named.get(found, "a tensor that it does not own")
    return None


def purify(module):
    graph = module.graph
    resolve_identities(graph)
    resolve_splits(graph)
    resolve_broadcasts(graph)
    resolve_in_place(module)
    resolve_constants(module)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users and not has_effects(node):
            graph.erase_node(node)
    graph.lint()


def has_effects(node):
    """Does it do more than make a result: change a tensor, advance a generator, or check something? An operator that is
    not PyTorch's own may do anything."""
    if node.target is operator.getitem:
        return False
    if is_barrier(node) or is_random(node) or node.is_impure() or node.target.namespace not in ("aten", "prims"):
        return True
    return not node.target._schema.returns  # _assert_async


def is_random(node):
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def draws(graph):
    """Of every node that draws random numbers the one before it: they must stay in this order."""
    nodes = [n for n in graph.nodes if is_random(n)]
    return dict(zip(nodes[1:], nodes))


def before(node, previous):
    """What a node must come after. previous: draws()."""
    return [*node.all_input_nodes, previous[node]] if node in previous else node.all_input_nodes


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


def is_not_contiguous(x, last):
    """batch_norm looks whether its argument is contiguous before it looks whether its channels come last."""
    return not x.is_contiguous() and (is_like_channels_last(x) or x.dim() in (4, 5) and x.is_contiguous(memory_format=last))


# Results are contiguous, or channels last if this says so of the argument and that layout.
BY_ARGUMENT = {aten.group_norm: lambda x, last: is_like_channels_last(x), aten.batch_norm: is_not_contiguous}


def is_doubtful(node, value):
    """A fake group_norm's strides along dimensions of one element are not PyTorch's, in either layout; a fake batch_norm keeps
    its argument's."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in BY_ARGUMENT and value.device.type == "cpu":
        return value.numel() > 0 and (1 in value.shape or packet is aten.batch_norm)
    return is_ambiguous(value)


def settled(node, value):
    """The result with the strides that PyTorch gives it. Pointwise operators make a new tensor for contiguous arguments
    of one shape, group_norm and batch_norm go by their argument's; on fake tensors some keep strides that only look alike."""
    if not is_doubtful(node, value) or is_view(node):
        return value
    packet = getattr(node.target, "overloadpacket", None)
    last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
    if packet in BY_ARGUMENT and BY_ARGUMENT[packet](node.args[0].meta["val"], last):
        return torch.empty_like(value, memory_format=last)
    if packet in BY_ARGUMENT or packet in ANEW or (is_pointwise(node) and of_one_shape(node, value)):
        return torch.empty_like(value, memory_format=torch.contiguous_format)
    return value


def of_one_shape(node, value):
    """Are all arguments contiguous tensors of the result's shape? A number with a tensor counts as one without
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
    mode = fake_mode(graph)
    if mode is None or not any(is_doubtful(n, n.meta.get("val")) for n in graph.nodes):
        return
    with mode, torch.no_grad():
        for node in as_it_runs(graph):
            if node.target is not operator.getitem and not isinstance(node.target, torch._ops.OpOverload):
                continue
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: value_of(module, n))
            node.meta["val"] = settled(node, node.target(*args, **kwargs))


def value_of(module, node):
    return getattr(module, node.target) if node.op == "get_attr" else node.meta["val"]
