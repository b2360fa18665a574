"""Regions of a captured graph: which operators join, and which of those are worth it.

Every operator of the vocabulary joins the regions it reads from, as long as no path leaves and returns, and nothing with
side effects lies between. A region that is not worth it is tried without the operators that are not.
"""

import operator
from collections import Counter
from dataclasses import dataclass

import torch

from .moves import MOVED_VIEWS
from .program import Program
from .purify import before, draws, is_barrier, is_pointwise
from .vocabulary import SHAPES, Emitter, emit_node, why_not


@dataclass
class Region:
    """One call: a program, the nodes it reads in the order of its sources, and their original shapes."""

    program: Program
    nodes: list  # of the captured graph
    sources: list
    outputs: list
    views: set  # nodes that stay in the graph as well, as views of the outputs


def shown(node, inside):
    """Follows views inside a region from a node to the one whose memory it shows."""
    chain = [node]
    while shape_only(chain[-1]) and chain[-1].all_input_nodes[0] in inside:
        chain.append(chain[-1].all_input_nodes[0])
    return chain


def results_of(nodes, inside):
    """(outputs, views): values that are read outside. If several of them share memory they still do afterwards,
    since one may be changed in place; a view alone is a value like any other."""
    chains = [shown(n, inside) for n in nodes if any(u not in inside for u in n.users) and not pair(n)]
    readers = Counter(chain[-1] for chain in chains)
    views = {v for chain in chains if readers[chain[-1]] > 1 for v in chain[:-1]}
    outputs = {chain[0] if readers[chain[-1]] == 1 else chain[-1] for chain in chains}
    return [n for n in nodes if n in outputs], views


def make_region(nodes, is_param):
    inside, sources = set(nodes), {}
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside and "number" not in source.meta:
                sources.setdefault(source, None)
    outputs, views = results_of(nodes, inside)
    program, numbers = Program(), {}
    for source in sources:
        numbers[source] = program.source(source in is_param)
    emit = Emitter(program, numbers.__getitem__)
    for node in nodes:
        numbers[node] = emit_node(emit, node)
    program.outputs = [numbers[n] for n in outputs]
    return Region(program, nodes, list(sources), outputs, views)


def pair(node):
    return isinstance(node.meta.get("val"), (tuple, list))


def unique_outputs(region):
    """Removes repeated outputs: the library returns every value once."""
    return len(set(region.program.outputs)) == len(region.outputs)


# ---- partition ------------------------------------------------------------------------------------------------


class Groups:
    """Growing regions: disjoint sets of nodes, with every set's inputs, to find paths that leave and return."""

    def __init__(self):
        self.of, self.members, self.inputs = {}, {}, {}

    def add(self, node, before):
        """before: what it has to come after. Placeholders are on no path: they read nothing."""
        self.of[node] = node
        self.members[node] = [node]
        self.inputs[node] = {n for n in before if n.op not in ("placeholder", "get_attr")}

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


def negated(node):
    """PyTorch may store the imaginary part of a conjugate unchanged, with a bit that says so: its memory has the other sign."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    if any(isinstance(v, torch.Tensor) and v.is_neg() for v in values):
        return "a tensor with PyTorch's negative bit"
    return None


def candidates(graph, device, is_param, kept):
    """Nodes of the vocabulary. `kept` receives the reasons for the others."""
    found, fixed = set(), set(is_param)
    for node in graph.nodes:
        if node.all_input_nodes and fixed.issuperset(node.all_input_nodes):
            fixed.add(node)
        if node.op != "call_function" or "number" in node.meta:
            continue
        reason = why_not(node, device, fixed) or negated(node)
        if not reason:
            found.add(node)
        elif node.target is not operator.getitem:
            kept[node] = reason
    return found


def partition(graph, wanted):
    """The wanted nodes as regions: lists of nodes in graph order."""
    groups, segment, where, taken, previous = Groups(), 0, {}, set(), draws(graph)
    for node in graph.nodes:
        groups.add(node, before(node, previous))
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
    """Without operators at the borders that only change a shape: they cost PyTorch nothing."""
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
    return name is not None and name.name.partition("::")[2].strip("_") in SHAPES | MOVED_VIEWS | {"view", "unsafe_view"}


def more_than_one(nodes):
    """A single pointwise operator is no faster in Convoy."""
    busy = [n for n in nodes if n.target is not operator.getitem and not shape_only(n)]
    return len(busy) > 1 or any(not is_pointwise(n) for n in busy)


def frozen_apart(nodes, trained):
    """Nodes of a region in one or two lists: Convoy can compute what is frozen while the rest is trained. Nothing frozen reads from
    what is not, so no path leaves and returns."""
    frozen = [n for n in nodes if n not in trained]
    if len(frozen) == len(nodes) or not any(map(is_heavy, frozen)):  # arithmetic only on arguments is not worth a region
        return [nodes]
    return [frozen, [n for n in nodes if n in trained]]


# ---- choose ---------------------------------------------------------------------------------------------------


class Chooser:
    """Chooses the nodes that become regions. `make_call(region)` returns the function that inserts its call, or None and the reason."""

    def __init__(self, graph, is_param, make_call, kept):
        self.order = {n: i for i, n in enumerate(graph.nodes)}
        self.is_param, self.make_call, self.kept = is_param, make_call, kept

    def attempt(self, nodes):
        """((region, call), None), or (None, the reason)."""
        nodes = trim(nodes)
        if not more_than_one(nodes):
            return None, "a single operator, which PyTorch runs as fast"
        region = make_region(nodes, self.is_param)
        if not region.outputs:
            return None, "nothing reads its results"
        if not unique_outputs(region):
            return None, "gives one value twice"
        call, reason = self.make_call(region)
        return ((region, call), None) if call is not None else (None, reason)

    def choose(self, nodes):
        """Regions of these nodes: all of them as one, or the pieces that are worth it, or none."""
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
        """Joins adjacent pieces into one region, if that is also worth it."""
        nodes = sorted((n for part in parts for n in part), key=self.order.get)
        whole = self.attempt(nodes)[0] if len(parts) > 1 else None
        return [whole] if whole else taken

    def keep(self, nodes, reason):
        self.kept.update((n, reason) for n in trim(nodes))


def is_heavy(node):
    """More than pointwise, and more than a view."""
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
