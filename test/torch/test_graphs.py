"""torch.compile(backend="convoy"), the operators, torch.export, and explain()."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
import convoy.backend
import convoy.ops
from agree import assert_near
from convoy.backend import compile_graph
from convoy.program import Program
from small_net import Net, X


class Branching(Net):
    """Dynamo breaks this one up."""

    def forward(self, x):
        x = F.silu(self.bn(self.conv(x)))
        if x.sum() > 0:
            x = x * 2
        return self.head(x.mean((2, 3))), x.sort(1)[0]


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def near(got, want):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", [Net, Branching])
def test_backend(kind):
    model = kind().eval()
    fast = torch.compile(model, backend=compile_graph)
    with torch.no_grad():
        for n in (2, 3, 5):  # the second size makes Dynamo's shapes symbolic
            x = torch.randn(n, 3, 9, 7)
            near(fast(x), model(x))
        model.conv.weight.mul_(-1.5)
        near(fast(X), model(X))
    x = X.clone().requires_grad_()
    fast(x)[0].sum().backward()
    got, x.grad = x.grad, None
    model(x)[0].sum().backward()
    near([got], [x.grad])


def test_backend_takes_options_and_uses_convoy(monkeypatch):
    made = []
    original = convoy.backend.fill_entry
    monkeypatch.setattr(convoy.backend, "fill_entry", lambda *a: made.append(original(*a)) or made[-1])
    fast = torch.compile(Net().eval(), backend=compile_graph, options={"winograd": False})
    with torch.no_grad():
        fast(X)
    assert [len(e.runners) for e in made] == [1]
    with pytest.raises(Exception, match="precision takes fp32"):
        torch.compile(Net().eval(), backend=compile_graph, options={"precision": "fp8"})(X)


def test_the_installed_package_is_found_by_name(tmp_path):
    """As pip leaves it: PyTorch looks the name up among the entry points, and registers what it finds there."""
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    section, line = '[project.entry-points."torch_dynamo_backends"]', 'convoy = "convoy.backend:compile_graph"'
    assert f"{section}\n{line}\n" in project
    told = tmp_path / "convoy-0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: convoy\nVersion: 0\n")
    (told / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + line.replace('"', "") + "\n")
    code = """
import torch
x = torch.randn(1, 3, 8, 8)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).requires_grad_(False)
fast = torch.compile(model, backend="convoy")
torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
import sys
assert "convoy.backend" in sys.modules
"""
    paths = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": paths})


@pytest.mark.skipif(torch.__version__.startswith("2.4."), reason="2.4 cannot trace instances of such a class")
def test_export_writes_operators():
    model = Net().eval()
    fast = convoy.compile(model)
    exported = torch.export.export(fast, (X,), strict=False)
    targets = [n.target for n in exported.graph.nodes if n.op == "call_function"]
    assert torch.ops.convoy.program.default in targets and len(targets) == 2  # and getitem
    assert set(exported.state_dict) == set(model.state_dict())
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    with torch.no_grad():
        assert torch.equal(loaded(X), fast(X))
        near(loaded.double()(X.double()), model.double()(X.double()))


def test_export_of_symbolic_shapes_and_other_compilers():
    fast = convoy.compile(Net().eval())
    exported = torch.export.export(fast, (X,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert exported.module()(torch.randn(5, 3, 9, 7)).shape == (5, 5)
    with torch.no_grad():
        near(torch.compile(fast, backend="aot_eager")(X), fast(X))


class WithoutGradients(nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            y = torch.tanh(super().forward(x)) * 2
        return torch.relu(y) + 1


class CastInside(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.relu(super().forward(x))
        return torch.tanh(y.float()) * 2


@pytest.mark.parametrize("kind", [WithoutGradients, CastInside])
def test_export_of_a_forward_that_switches_modes(kind):
    model, x, file = kind(4, 4), torch.randn(3, 4), io.BytesIO()
    exported = torch.export.export(convoy.compile(model), (x,), strict=False)
    torch.export.save(exported, file)
    file.seek(0)
    near(torch.export.load(file).module()(x), model(x))


def test_export_of_values_of_tensors_is_pytorchs_own():
    class Item(nn.Linear):
        def forward(self, x):
            return torch.tanh(super().forward(x)) * x.sum().item() + 1

    model, x = Item(4, 4), torch.randn(3, 4)
    near(torch.export.export(convoy.compile(model), (x,), strict=False).module()(x), model(x))


@pytest.mark.skipif(torch.__version__.startswith("2.4."), reason="2.4 cannot trace instances of such a class")
def test_export_of_what_changes_itself_is_pytorchs_own():
    class Counts(Net):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counts().eval()
    exported = torch.export.export(convoy.compile(model), (X,), strict=False)
    assert torch.ops.convoy.program.default not in [n.target for n in exported.graph.nodes]
    near(exported.module()(X), model(X))


def test_operator_is_a_good_citizen():
    program = Program()
    x, w, b = program.source(False), program.source(True), program.source(True)
    program.outputs = [program.emit("relu", program.emit("conv2d", x, w, b, out_channels=4, kernel_size=3))]
    tensors = [torch.randn(s, requires_grad=True) for s in [(2, 3, 6, 5), (4, 3, 3, 3), (4,)]]
    text = program.dumps()
    assert Program.loads(text) == program
    torch.library.opcheck(torch.ops.convoy.program.default, (tensors, text, "{}"))
    call = lambda t: torch.ops.convoy.program(t, text, "{}")[0] * 2  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    want = F.relu(F.conv2d(*tensors)) * 2
    assert_near(compiled(tensors).detach(), want.detach(), want.double().detach())


def test_explain():
    class Mixed(Net):
        def forward(self, x):
            y = torch.tanh(self.conv(x)).sort(1)[0]
            return self.bn(y).mean((2, 3)), y.double()

    model = Mixed().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = convoy.explain(model, X)
    assert len(found.regions) == 2
    assert "conv2d(8, 3, padding=1" in found.regions[0]["chain"]
    assert all(r["passes"] >= 1 and r["measured_ms"] > 0 and r["predicted_ms"] > 0 for r in found.regions)
    passes = [line for r in found.regions for line in r["plan"].splitlines() if " GFLOP, predicted" in line]
    assert passes and all(re.search(r"predicted \S+ ms, measured \S+ ms", line) for line in passes)
    text = str(found)
    assert "aten.sort.default): Convoy does not support this operator" in text and "2 regions by Convoy on cpu" in text
    assert json.dumps(found.regions)
    assert found.prepared == sum(r["prepared"] for r in found.regions) > 0
    assert found.workspace == max(r["workspace"] for r in found.regions) > 0 and "MB derived from parameters" in text
    model.train()
    assert "statistics of the batch" in str(convoy.explain(model, X))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    model.conv.register_forward_hook(lambda *a: None)
    assert "a submodule has hooks" in str(convoy.explain(model, X))


def test_explain_with_elements_that_are_there_twice():
    """A tensor that shows an element more than once cannot be filled: neither an expanded buffer nor an expanded input."""

    class Expanded(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.randn(8, 1, 1).expand(8, 9, 7))

        def forward(self, x):
            return torch.tanh(self.conv(x) * self.scale)

    model = Expanded().eval()
    found = convoy.explain(model, X[:1].expand(4, 3, 9, 7))
    assert len(found.regions) == 1 and found.regions[0]["measured_ms"] > 0
    assert len(convoy.explain(model, X[:0]).regions) <= 1


def test_dynamic_floats_are_numbers(monkeypatch):
    """With dynamic=True Dynamo hands over every float of a module, an eps as well, in a tensor."""

    class Eps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.GroupNorm(2, 4)
            self.slope = 0.3

        def forward(self, x):
            return F.leaky_relu(self.norm(self.conv(x)), self.slope) * self.slope

    made = []
    original = convoy.backend.fill_entry
    monkeypatch.setattr(convoy.backend, "fill_entry", lambda *a: made.append(original(*a)) or made[-1])
    model = Eps().requires_grad_(False)
    fast = torch.compile(model, backend=compile_graph, dynamic=True)
    for n in (2, 3):
        x = torch.randn(n, 3, 9, 7)
        near(fast(x), model(x))
    assert [(len(e.runners), len(e.capture.kept)) for e in made] == [(1, 0)] * len(made)
    for i in range(20):
        model.slope, model.norm.eps = 0.1 * i, 0.5
        near(fast(x), model(x))
    assert len(made) <= 2 * convoy.backend.MOST_NUMBERS


def test_dynamic_zeros_keep_their_sign():
    class Slope(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = 0.5

        def forward(self, x):
            return F.leaky_relu(x, self.slope) * 2

    model = Slope()
    fast = torch.compile(model, backend=compile_graph, dynamic=True, options={"regions": "all"})
    x = torch.tensor([-1.0, 2.0])
    for model.slope in (0.5, 0.25, 0.0, -0.0):
        assert torch.equal(torch.signbit(fast(x)), torch.signbit(model(x))), model.slope
