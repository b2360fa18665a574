"""A problem file's model for eject.py: the file's text, the traced call, and forward() as text."""

import ast
import inspect
import operator
import sys
from pathlib import Path

import torch
from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from .capture import trace
from .entry import Entry
from .building import fill_entry, forward_of, inner_hooks, stateless
from .problem import SEED, Bad, about
from .region import Runner
from .state import State

# Names that the new file gives itself.
OWN = {"ModelNew", "Region", "Last", "Forward", "expect", "fit", "versions", "getter", "checker", "finder", "public_stream",
       "current_stream", "current_device", "maker", "library", "compiled", "GRADIENTS",
       "source", "kernel", "expand", "functools", "hashlib", "inspect", "operator", "os", "re", "load_inline", "POINTER",
       "STRIDE", "VERSION", "KIND", "NEEDS_GRADIENT", "CAPABILITY", "BLOCKS_AT_ONCE", "ARCHITECTURE",
       "FLAGS", "FUNCTIONS", "HEAD", "DECLARATIONS", "LAUNCHES", "KERNELS", "FILES"}  # fmt: skip
GRAD_MODE = torch._C._set_grad_enabled  # in the graph for torch.no_grad(); there are no gradients here


# ---- the problem file's own text ---------------------------------------------------------------------------------


def problem_text(path):
    """The file without ModelNew, without Convoy, and without code that runs only as a program."""
    text = Path(path).read_text()
    tree, lines = ast.parse(text), text.splitlines()
    dropped = [node for node in tree.body if is_dropped(node)]
    kept = [node for node in tree.body if node not in dropped]
    check_kept(path, tree.body, kept)
    for node in dropped:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if any(k.lineno <= node.end_lineno and first <= k.end_lineno for k in kept):
            raise Bad(f"{path}: line {first}: another statement on the line of one that eject leaves out")
        if is_docstring(node):
            for i in range(first - 1, node.end_lineno):
                lines[i] = ("# " + lines[i].strip().strip("\"'")).rstrip()
            continue
        while first > 1 and lines[first - 2] == "":  # the blank lines before go as well
            first -= 1
        lines[first - 1 : node.end_lineno] = [None] * (node.end_lineno - first + 1)
    return "\n".join(line for line in lines if line is not None).strip()


def is_docstring(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def is_dropped(node):
    if isinstance(node, ast.ClassDef):
        return node.name == "ModelNew"
    if isinstance(node, ast.If):
        return "__name__" in ast.dump(node.test)
    return is_docstring(node) or any(m.split(".")[0] == "convoy" for m in imported(node))


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or "."] if isinstance(node, ast.ImportFrom) else []


def bound(node):
    """Names that a top-level statement of the file defines."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def check_kept(path, body, kept):
    """Refuses a file that needs Convoy, another file, or a name that the new one uses."""
    convoy = {name for node in body if any(m.split(".")[0] == "convoy" for m in imported(node)) for name in bound(node)}
    beside = Path(path).resolve().parent
    for node in kept:
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        inner = {m.split(".")[0] for n in ast.walk(node) for m in imported(n)}
        if used & convoy or "convoy" in inner:
            raise Bad(f"{path}: line {node.lineno}: uses Convoy, which the new file does not need")
        for name in inner:
            if not name or (beside / f"{name}.py").exists() or (beside / name / "__init__.py").exists():
                told = f"imports {name or '.'}, a file next to it: put its contents into the problem file first"
                raise Bad(f"{path}: line {node.lineno}: {told}")
        if not inner and (taken := bound(node) & OWN):
            raise Bad(f"{path}: line {node.lineno}: {taken.pop()} is a name that the new file needs: rename it")


# ---- the model as a graph ----------------------------------------------------------------------------------------


def build_model(problem, path):
    with about(path, "Model cannot be built"):
        torch.manual_seed(SEED)
        model = problem.Model(*problem.get_init_inputs()).eval()
    with about(path, "get_inputs() fails"):
        torch.manual_seed(SEED)
        inputs = list(problem.get_inputs())
    plain = (torch.Tensor, bool, int, float, str, type(None))
    for i, value in enumerate(inputs):
        if not isinstance(value, plain):
            raise Bad(f"{path}: input {i} is a {type(value).__name__}: eject takes tensors and numbers")
    if any(inner_hooks(model)):
        raise Bad(f"{path}: a submodule has hooks, which a captured graph would not call")
    return model, inputs


def input_names(model, inputs):
    """forward()'s own names, if it takes that many plain arguments."""
    try:
        found = [p.name for p in inspect.signature(model.forward).parameters.values()
                 if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][: len(inputs)]  # fmt: skip
    except (TypeError, ValueError):
        found = []
    return found if len(found) == len(inputs) else [f"x{i}" for i in range(len(inputs))]


class Traced:
    """A call of the model on fake tensors of a GPU: no memory, no driver of PyTorch's."""

    def __init__(self, model, inputs, path):
        self.model, self.device, self.path = model, torch.device("cuda", 0), path
        self.state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
        where = [i for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        constants = [None if i in where else value for i, value in enumerate(inputs)]
        leaves = [inputs[i] if i in where else 0 for i in range(len(inputs))]
        spec = pytree.tree_flatten((tuple(leaves), {}))[1]
        self.nesting = spec, constants, where
        self.params = [self.fake(t) for t in self.state.values()]
        self.tensors = [self.fake(inputs[i]) for i in where]

    def run(self, params, given):
        replaced = list(self.state.values())
        return stateless(self.model, forward_of(type(self.model)), State(self.model), replaced, self.nesting)(params, given)

    def fake(self, tensor):
        with self.mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)

    def entry(self, settings):
        entry = Entry()
        entry.params = self.params
        with torch.no_grad():
            entry = fill_entry(entry, self.run, self.tensors, settings, keep=False)
        if not entry.runners:
            kept = [f"{n.target}: {why}" for n, why in entry.capture.kept.items()] if entry.capture else []
            raise Bad("; ".join([f"{self.path}: {entry.reason}", *kept]))
        return entry

    def depends_on_training(self):
        codes = []
        for training in (False, True):
            self.model.train(training)
            try:
                with torch.no_grad():
                    codes.append(trace(self.run, self.params, self.tensors, "fake")[0].code)
            except Exception as error:  # any error: in training it does something else than in evaluation
                codes.append(str(error))
            finally:
                self.model.eval()
        return codes[0] != codes[1]


# ---- forward() as text -------------------------------------------------------------------------------------------


def path_text(model, name):
    """self.down[0].conv1.weight"""
    text, here = "self", model
    for part in name.split("."):
        if isinstance(here, (nn.Sequential, nn.ModuleList, nn.ParameterList)) and part.isdigit():
            text += f"[{part}]"
        elif part.isidentifier():
            text += f".{part}"
        else:
            text = f"getattr({text}, {part!r})"
        here = getattr(here, part)
    return text


class Writer:
    """Lines of forward(): regions, and PyTorch's operators between them."""

    def __init__(self, traced, entry, names, inputs):
        self.traced, self.entry, self.lines = traced, entry, []
        tensors = [n for n, value in zip(names, inputs) if isinstance(value, torch.Tensor)]
        graph = entry.capture.graph.graph
        placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        params = [path_text(traced.model, name) for name in traced.state]
        self.text = dict(zip(placeholders, [*params, *tensors]))
        self.label = dict(zip(placeholders, [*traced.state, *tensors]))
        self.taken = {*names, "self", "torch", "device", *OWN, *(f"region{i}" for i in range(len(entry.runners)))}
        self.device = f"{tensors[0]}.device" if tensors else "torch.device('cuda')"
        self.regions = []  # (runner, labels of its sources in the library's order)
        # Tensors that only regions read: regions check them themselves.
        self.looked_at = {self.text[n] for n in placeholders[len(params) :] if n.users and
                          all(isinstance(u.target, Runner) for u in n.users)}  # fmt: skip
        last = {}
        for node in graph.nodes:
            last.update((source, node) for source in node.all_input_nodes)
        for node in graph.nodes:
            if node.op != "placeholder":
                self.write(node)
                self.forget([n for n, user in last.items() if user is node and n not in placeholders])

    def forget(self, nodes):
        """Memory of results that are not read any more."""
        done = sorted({self.text[n] for n in nodes if self.text.get(n, "").isidentifier()})
        if done and not self.lines[-1].startswith("return"):
            self.lines.append(f"del {', '.join(done)}")

    def name(self, wanted):
        while wanted in self.taken:
            wanted += "_"
        self.taken.add(wanted)
        return wanted

    def write(self, node):
        if node.op == "output":
            self.lines.append(f"return {self.nested(node.args[0])}")
        elif node.op == "get_attr":
            self.text[node] = self.attribute(node)
        elif isinstance(node.target, Runner):
            self.call_region(node)
        elif node not in self.text and node.target is not GRAD_MODE:  # a region's result has its name already
            self.text[node] = self.name(node.name)
            self.lines.append(f"{self.text[node]} = {self.call(node)}")

    def call(self, node):
        given = [*map(self.literal, node.args), *(f"{k}={self.literal(v)}" for k, v in node.kwargs.items())]
        if node.target is operator.getitem:
            return f"{given[0]}[{given[1]}]"
        if isinstance(node.target, torch._ops.OpOverload):
            return f"torch.ops.{node.target}({', '.join(given)})"
        module, name = getattr(node.target, "__module__", None) or "", getattr(node.target, "__name__", "")
        if not module.startswith("torch") or getattr(sys.modules.get(module), name, None) is not node.target:
            raise Bad(f"{self.traced.path}: a call of {node.target} stays in PyTorch, and cannot be written as code")
        return f"{module}.{name}({', '.join(given)})"

    def call_region(self, node):
        order = node.target.program.order()
        sources = [node.args[i] for i in order]
        count = len(node.target.outputs)
        results = [self.name(f"y{len(self.regions)}" + (f"_{i}" if count > 1 else "")) for i in range(count)]
        self.text.update((user, results[user.args[1]]) for user in node.users)
        inputs = [node.args[i] for i in order if not node.target.program.params[i]]  # parameters it finds itself
        given = ", ".join(["self", *map(self.literal, inputs)])
        self.lines.append(f"{', '.join(results)}{',' * (len(results) == 1)} = region{len(self.regions)}({given})")
        self.regions.append((node.target, [self.label.get(s, s.name) for s in sources]))

    def attribute(self, node):
        """A tensor that is neither parameter nor buffer: a number, or an attribute of some module."""
        value = getattr(self.entry.capture.graph, node.target)
        for prefix, module in self.traced.model.named_modules():
            for key, held in vars(module).items():
                if held is value:
                    return path_text(self.traced.model, f"{prefix}.{key}".lstrip("."))
        if value.dim() == 0 and value.device.type == "cpu":
            return f"torch.tensor({self.literal(value.item())}, dtype={value.dtype})"
        raise Bad(f"{self.traced.path}: forward() creates a tensor from data: register it as a buffer")

    def nested(self, flat):
        spec = self.entry.capture.out_spec
        nest = flat[0] if spec.is_leaf() else pytree.tree_unflatten(list(flat), spec)
        return self.literal(nest)

    def literal(self, value):
        if isinstance(value, Node):
            return self.text[value]
        if isinstance(value, float) and value - value != 0:
            return f'float("{value}")'
        if type(value) in (bool, int, float, str, type(None), type(...)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return str(value)
        if isinstance(value, torch.device):
            return self.device if value.type == "cuda" else f"torch.device({str(value)!r})"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self.literal, (value.start, value.stop, value.step)))})"
        if isinstance(value, dict) and all(type(k) is str for k in value):
            return "{" + ", ".join(f"{k!r}: {self.literal(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list) or type(value).__name__ == "immutable_list":
            return f"[{', '.join(map(self.literal, value))}]"
        if type(value) is tuple:
            return f"({', '.join(map(self.literal, value))}{',' * (len(value) == 1)})"
        raise Bad(f"{self.traced.path}: a {type(value).__name__} among arguments or results cannot be written as code")
