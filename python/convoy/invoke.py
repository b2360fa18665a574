"""A captured graph as a function of the call's tensors, with as little overhead as possible."""

import operator

from torch.utils import _pytree as pytree

from .region import Runner


def only_region(found):
    """If the whole graph is one region: the positions of its sources among the placeholders, and of the results."""
    nodes = list(found.graph.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    rest = [n for n in nodes if n.op not in ("placeholder", "output")]
    if len(found.regions) != 1 or rest[0].op != "call_function" or not isinstance(rest[0].target, Runner):
        return None
    call, picks = rest[0], rest[1:]
    if any(p.target is not operator.getitem or p.args[0] is not call for p in picks):
        return None
    if any(s.op != "placeholder" for s in call.args):
        return None
    results = nodes[-1].args[0]
    if any(r not in picks for r in results):
        return None
    return call.target, [placeholders.index(s) for s in call.args], [r.args[1] for r in results]


def invoker(found, params, whole):
    """tensors -> results. The captured graph as a function with the least overhead. params: the first of its
    placeholders, the same in every call. whole: of only_region()."""
    spec = found.out_spec
    nested = not spec.is_leaf()
    if whole is None:
        forward = found.graph.forward

        def through_graph(tensors):
            flat = forward(*params, *tensors)
            return pytree.tree_unflatten(flat, spec) if nested else flat[0]

        return through_graph
    runner, positions, picks = whole
    n = len(params)
    # Parameters are always the same objects (the state guarantees that), so the list already contains them.
    template = [params[p] if p < n else None for p in positions]
    inputs = [(i, p - n) for i, p in enumerate(positions) if p >= n]

    def straight(tensors):
        sources = template.copy()
        for i, p in inputs:
            sources[i] = tensors[p]
        results = runner(*sources)
        return pytree.tree_unflatten([results[p] for p in picks], spec) if nested else results[picks[0]]

    return straight
