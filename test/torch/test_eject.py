"""`convoy eject`: what the file says and refuses, and, without a GPU, that it launches what Convoy launches.

A driver that writes launches down (test/eject) is under both: kernels, order, grids, attributes and every byte of
the arguments must be the same, and the texts that reach the compiler the same after preprocessing. That the results
have the same bits is then shown on a GPU by test/gpu/eject.py.
"""

import ast
import ctypes as C
import importlib.machinery
import importlib.util
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from convoy.binding import lib
from convoy.program import Program

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "test" / "eject"
sys.path.insert(0, str(HERE))
STANDIN = lib.path.resolve().parent / "test" / "standin"
CXX = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
NVCC = shutil.which("nvcc")

import drive  # noqa: E402
import host  # noqa: E402
from problems import FOLD, PROBLEMS  # noqa: E402


def standins(**more):
    env = {**os.environ, "CVY_CACHE": "off", "CVY_NVRTC_LIB": str(STANDIN / "libnvrtc.so.13"), **more}
    return {"CVY_CUDA_LIB": str(STANDIN / "libcuda.so.1"), **env} if "CVY_CUDA_LIB" not in more else env


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    if not (STANDIN / "libcuda.so.1").exists():
        pytest.skip(f"there is no {STANDIN}: make tests")
    library = tmp_path_factory.mktemp("recorder") / "librecorder.so"
    flags = ["-D_GNU_SOURCE", "-Wall", "-Wextra", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "-o", library, HERE / "recorder.c", "-ldl"], check=True)
    return library


def driven(recorder, folder, problems, **env):
    for name, text in problems.items():
        (folder / f"{name}.py").write_text(text)
    env = standins(CVY_CUDA_LIB=str(recorder), RECORDER_STANDIN=str(STANDIN / "libcuda.so.1"),
                   CVY_DUMP=str(folder / "dump"), **env)  # fmt: skip
    done = subprocess.run([sys.executable, HERE / "drive.py", folder], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def ejected(recorder, tmp_path_factory):
    return driven(recorder, tmp_path_factory.mktemp("ejected"), PROBLEMS)


@pytest.fixture(scope="module")
def ejected_80(recorder, tmp_path_factory):
    return driven(recorder, tmp_path_factory.mktemp("ejected80"), {"fold": FOLD}, RECORDER_CAPABILITY="8.0")


def imported(path):
    loader = importlib.machinery.SourceFileLoader(path.stem, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.stem, loader))
    sys.modules[path.stem] = module  # for pickle
    loader.exec_module(module)
    return module


# ---- it launches what Convoy launches ----------------------------------------------------------------------------


def launched(folder, name, recorder):
    """What the ejected file's C++ launches, compiled against headers that stand in for the toolkit's."""
    module, log = imported(folder / f"{name}.new"), folder / f"{name}.ejected"
    kernels = "".join(f'namespace k{i} {{ extern "C" void {k[0]}() {{}} }}\n' for i, k in enumerate(module.KERNELS))
    calls = "".join(
        f'extern "C" void call_{f}(int64_t *t, int n, int64_t w, int p, int64_t s) {{ {f}({{t, t + n}}, w, p, s); }}\n'
        for f in module.FUNCTIONS
    )
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    source.write_text(module.HEAD + kernels + module.LAUNCHES + calls)
    command = [CXX, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{HERE}", "-o", library, source]
    subprocess.run([*command, recorder, f"-Wl,-rpath,{recorder.parent}"], check=True)
    regions = [getattr(module, f) for f in module.FUNCTIONS]
    tensors = {r.name: [drive.address(i) for i in range(len(r.sources) + len(r.results))] for r in regions}
    code = f"""
import ctypes as C
library = C.CDLL({str(library)!r})
for name, tensors in {tensors}.items():
    call, n = getattr(library, "call_" + name), len(tensors)
    call.argtypes = [C.POINTER(C.c_int64), C.c_int, C.c_int64, C.c_int, C.c_int64]
    for prepare in (1, 0):
        call((C.c_int64 * n)(*tensors), n, {drive.WORKSPACE}, prepare, {drive.STREAM})
"""
    env = standins(RECORDER_LOG=str(log), RECORDER_SIZES=str(folder / f"{name}.sizes"))
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    return log.read_text().splitlines()


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", PROBLEMS)
def test_same_launches(ejected, recorder, name):
    ours, theirs = launched(ejected, name, recorder), (ejected / f"{name}.convoy").read_text().splitlines()
    assert len(theirs) > 1 and ours == theirs


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
def test_same_launches_without_wgmma(ejected_80, recorder):
    ours = launched(ejected_80, "fold", recorder)
    assert ours == (ejected_80 / "fold.convoy").read_text().splitlines()
    module = imported(ejected_80 / "fold.new")
    assert module.CAPABILITY == (8, 0) and module.ARCHITECTURE == "8.0"
    text = (ejected_80 / "fold.new").read_text()
    assert "conv_tc" not in text and "conv_mma" in text


def test_tensor_cores_and_strides_are_among_them(ejected):
    text = {name: (ejected / f"{name}.convoy").read_text() for name in PROBLEMS}
    assert "conv_tc_f32_keep" in text["fold"] and "conv_tc_f32_both" in text["both"]
    assert "conv_mma" in text["generic"] and "conv_simple" in text["generic"]
    assert "_strided" in text["strided"] and "turn_f32" in text["strided"]
    assert "norm_stats_last_bf16" in text["last"] and " pixels(" in (ejected / "last.new").read_text()
    assert "matmul_tc_f32" in text["layers"] and "matmul_tc_pack" in text["layers"]
    assert text["fold"].count("set ") == 1  # words of statistics: zero on a new workspace, and never again


def preprocessed(text, *options):
    command = [CXX, "-E", "-P", "-x", "c++", *options, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return re.sub(r"\s+", " ", done.stdout.replace('extern "C" __device__', "__device__")).strip()


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", PROBLEMS)
def test_same_kernels(ejected, name):
    """The compiler is given the same tokens as NVRTC was (CVY_DUMP left its files)."""
    module = imported(ejected / f"{name}.new")
    for i, (entry, source, _, _) in enumerate(module.KERNELS):
        folder = next((ejected / "dump").glob(f"{entry}.sm_*"))
        options = [o for o in (folder / "options.txt").read_text().splitlines() if o.startswith("-D")]
        given = preprocessed((folder / source).read_text(), f"-I{folder}", *options)
        assert preprocessed(module.kernel(i)) == f"namespace k{i} {{ {given} }}", entry


# ---- what compilers say ------------------------------------------------------------------------------------------

EVERY = [*((name, "ejected") for name in PROBLEMS), ("fold", "ejected_80")]


def architecture(module):
    number = module.ARCHITECTURE.replace(".", "")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


def test_every_kernel_is_among_them(request):
    modules = [imported(request.getfixturevalue(fixture) / f"{name}.new") for name, fixture in EVERY]
    kernels = {path.name for path in (ROOT / "src" / "cuda" / "kernels").glob("*.cu")}
    used = {source for module in modules for _, source, _, _ in module.KERNELS}
    assert used == kernels - {"conv_direct.cu"}  # plans without measurements take conv_mma.cu


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
@pytest.mark.parametrize("name, fixture", EVERY)
def test_compiles_for_the_host(name, fixture, request):
    """What NVRTC never sees: nvcc gives its text to the host's compiler as well."""
    assert not host.errors(imported(request.getfixturevalue(fixture) / f"{name}.new").source(), CXX)


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    "text, fine",
    [
        ("struct s { float x = __int_as_float(1); };", False),
        ("struct s { float x; __device__ s() : x(__int_as_float(1)) { } };", False),
        ("struct s { float x; __device__ s() { x = __int_as_float(1); } };", True),
        ("__global__ void __launch_bounds__(32) f(int n) { asm(\"{\"); if (n) { __syncthreads(); } }", True),
        ("__device__ constexpr int two() { return 2; } __device__ float table[two()];", True),
    ],
)
def test_what_the_host_sees(text, fine):
    assert (host.errors(text, CXX) == []) == fine


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.parametrize("name, fixture", EVERY)
def test_compiles(name, fixture, request, tmp_path):
    """Every kind of kernel, several in one text, with PyTorch's flags: for the device and for the host."""
    from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

    module, source = imported(request.getfixturevalue(fixture) / f"{name}.new"), tmp_path / "all.cu"
    source.write_text(module.source())
    flags = ["-std=c++17", *COMMON_NVCC_FLAGS, architecture(module), *module.FLAGS]
    done = subprocess.run([NVCC, "-c", *flags, "-o", tmp_path / "all.o", source], capture_output=True, text=True)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


@pytest.mark.parametrize("old", [False, True])
def test_how_it_is_compiled(ejected, monkeypatch, old):
    """For this architecture alone: sm_90 has no wgmma. Versions of PyTorch differ in which flags they heed."""
    module, given = imported(ejected / "fold.new"), []

    def load_inline(name, cpp, cuda, functions, extra_cuda_cflags, no_implicit_headers=False):
        given.append((os.environ["TORCH_CUDA_ARCH_LIST"], functions, cuda == module.source(), no_implicit_headers))
        assert not any("arch" in flag for flag in extra_cuda_cflags) and "<torch/extension.h>" in cpp

    def load_inline_once(name, cpp, cuda, functions, extra_cuda_cflags):
        load_inline(name, cpp, cuda, functions, extra_cuda_cflags)

    monkeypatch.setattr(module, "load_inline", load_inline_once if old else load_inline)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0+PTX")
    module.compiled()
    module.compiled()
    assert given == [("9.0a", ["region0"], True, not old)] and os.environ["TORCH_CUDA_ARCH_LIST"] == "8.0+PTX"


@pytest.mark.skipif(NVCC is None, reason="no nvcc")
@pytest.mark.skipif(os.environ.get("CONVOY_TEST_PROFILE") != "long", reason="PyTorch's headers take minutes")
def test_compiles_beside_pytorch(ejected, monkeypatch):
    """The two files that load_inline() writes, against PyTorch's own headers."""
    from torch.utils import cpp_extension as cpp

    written = []
    monkeypatch.setattr(cpp, "_jit_compile", lambda name, files, *rest, **more: written.extend([name, *files]))
    module = imported(ejected / "both.new")
    module.compiled()
    name, main, kernels = written
    paths = [*cpp.include_paths(), sysconfig.get_paths()["include"], str(Path(NVCC).resolve().parents[1] / "include")]
    flags = [f"-DTORCH_EXTENSION_NAME={name}", "-std=c++20", *(f"-I{p}" for p in paths if Path(p).exists())]
    toolkit = subprocess.run([NVCC, "--dryrun", "-x", "cu", "-c", os.devnull], capture_output=True, text=True).stderr
    flags += re.findall(r'"(-I[^"]+)"', toolkit)[:1]
    subprocess.run([CXX, *flags, "-w", "-fPIC", "-c", main, "-o", ejected / "main.o"], check=True)
    nvcc = [NVCC, *cpp.COMMON_NVCC_FLAGS, architecture(module), *module.FLAGS, *flags, "-w"]
    subprocess.run([*nvcc, "-c", kernels, "-o", ejected / "cuda.o"], check=True)


# ---- the file ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_file_stands_alone(ejected, name):
    text = (ejected / f"{name}.new").read_text()
    nodes = list(ast.walk(ast.parse(text)))
    names = {a.name.split(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module.split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom)}
    assert names == {"functools", "hashlib", "inspect", "operator", "os", "re", "torch"}
    assert "__main__" not in text and text.count("class ModelNew") == 1
    files = re.findall(r'^FILES\["(.*?)"\]', text, flags=re.M)
    assert "common.cuh" in files and len(files) == len(set(files))


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_constructor_and_parameters(ejected, name):
    module = imported(ejected / f"{name}.new")
    assert inspect.signature(module.ModelNew) == inspect.signature(module.Model)
    old, new = module.Model(*module.get_init_inputs()), module.ModelNew(*module.get_init_inputs())
    assert {k: v.shape for k, v in old.state_dict().items()} == {k: v.shape for k, v in new.state_dict().items()}
    new.load_state_dict(old.state_dict())
    new.__dict__["_workspaces"] = {0: "of this process alone"}
    again = pickle.loads(pickle.dumps(new))
    assert "_workspaces" not in vars(again) and torch.equal(next(again.parameters()), next(old.parameters()))


@pytest.mark.parametrize("name", PROBLEMS)
def test_forward_is_the_models(ejected, name, monkeypatch):
    """Regions computed by PyTorch, everything around them as the file has it."""
    module, told = imported(ejected / f"{name}.new"), json.loads((ejected / f"{name}.json").read_text())

    def by_pytorch(program, region):
        def call(owner, *inputs):
            given = [*inputs, *(param(owner) for param in region.params)]
            assert [(t.shape, t.dtype) for t in given] == [(shape, dtype) for _, shape, _, dtype in region.sources]
            sources = [None] * len(given)
            for i, tensor in zip(program.order(), given):
                sources[i] = tensor
            results = program.evaluate(sources)
            assert [(t.shape, t.dtype) for t in results] == [(shape, dtype) for shape, _, dtype in region.results]
            return tuple(results)

        return call

    for f, program in zip(module.FUNCTIONS, told["programs"], strict=True):
        monkeypatch.setattr(module, f, by_pytorch(Program.loads(json.dumps(program)), getattr(module, f)))
    monkeypatch.setattr(module, "expect", lambda *_: None)
    torch.manual_seed(0)
    new, inputs = module.ModelNew(*module.get_init_inputs()).eval(), module.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), module.Model.forward(new, *inputs))
    assert bool(told["kept"]) == (name == "mixed")


def test_messages(ejected):
    module = imported(ejected / "fold.new")
    new, x = module.ModelNew(64), module.get_inputs()[0]
    wanted = "made for x as torch.float32 [16, 8, 128, 128] on cuda, got "
    for value, got in [
        (x, "torch.float32 [16, 8, 128, 128] on cpu"),
        (x.to("meta").double(), "torch.float64 [16, 8, 128, 128] on meta"),
        (x[:2].to("meta"), "torch.float32 [2, 8, 128, 128] on meta"),
        (3, "int"),
    ]:
        with pytest.raises(ValueError, match=re.escape(wanted + got)):
            new(value)
    with pytest.raises(ValueError, match=re.escape("norm.weight as torch.float32 [64] on cuda:0, got")):
        module.expect("norm.weight", new.norm.weight, torch.float32, (64,), torch.device("cuda:0"))
    mixed = imported(ejected / "mixed.new")
    model, inputs = mixed.ModelNew(), mixed.get_inputs()
    mixed.expect = lambda *_: None
    with pytest.raises(ValueError, match="made for times = 2.5"):
        model(inputs[0], 2.0, *inputs[2:])


def test_training(ejected):
    generic, fold = imported(ejected / "generic.new"), imported(ejected / "fold.new")
    with pytest.raises(RuntimeError, match="call .eval"):
        generic.ModelNew(6)(*generic.get_inputs())  # batch statistics
    with pytest.raises(ValueError, match="on cuda"):
        fold.ModelNew(64)(*fold.get_inputs())  # the same in both modes
    x = torch.ones(2, requires_grad=True)
    region = type("", (), {"run": lambda self, module, tensors: (tensors[0] * 2,)})()
    with pytest.raises(RuntimeError, match="computes no gradients"):
        fold.Forward.apply(region, None, x)[0].sum().backward()


def test_other_strides_are_copied(ejected):
    module = imported(ejected / "fold.new")
    x = torch.rand(3, 4, 5)
    assert module.fit(x, x.stride()) is x
    assert torch.equal(y := module.fit(x.transpose(0, 1), (15, 5, 1)), x.transpose(0, 1)) and y.stride() == (15, 5, 1)
    odd = torch.rand(61)[1:]
    assert odd.data_ptr() % 16 and module.fit(odd, (1,)).data_ptr() % 16 == 0


# ---- the command -------------------------------------------------------------------------------------------------


def convoy(*arguments, **env):
    command = [sys.executable, "-m", "convoy", "eject", *map(str, arguments)]
    return subprocess.run(command, env=standins(**env), capture_output=True, text=True)


def test_command(recorder, tmp_path):
    (tmp_path / "fold.py").write_text(FOLD)
    done = convoy(tmp_path / "fold.py", "-o", tmp_path / "new.py", "--precision", "tf32")
    assert done.returncode == 0 and "1 region" in done.stdout, done.stderr
    assert "TC_PRODUCTS=1" in (tmp_path / "new.py").read_text()


def test_no_gpu(tmp_path):
    (tmp_path / "fold.py").write_text(FOLD)
    done = convoy(tmp_path / "fold.py", "-o", tmp_path / "new.py", CVY_CUDA_LIB=str(tmp_path / "libcuda.so.1"))
    assert done.returncode == 2 and not (tmp_path / "new.py").exists()
    assert "eject needs the GPU" in done.stderr and "libcuda.so.1" in done.stderr


@pytest.mark.parametrize(
    "text, message",
    [
        (FOLD.replace("class Model(nn.Module)", "import convoy\nclass Model(nn.Module)").replace(
            "def __init__(self", "hidden = convoy\n\n    def __init__(self"), "uses Convoy"),
        (FOLD + "import beside\n", "imports beside, a file next to it"),
        (FOLD + "import convoy; import math\n", "another statement on the line"),
        (FOLD + "def expand(x): return x\n", "expand is a name that the new file needs"),
    ],
)  # fmt: skip
def test_files_that_cannot_stand_alone(tmp_path, text, message):
    from convoy.eject_model import problem_text
    from convoy.problem import Bad

    (tmp_path / "beside.py").write_text("")
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(Bad, match=message):
        problem_text(tmp_path / "bad.py")


def test_text_of_the_problem_is_kept(tmp_path):
    from convoy.eject_model import problem_text

    text = '"""What\nit is."""\n\nimport convoy\n\nTEXT = """a\n\n\n\n\nb"""\n\n\n'
    (tmp_path / "kept.py").write_text(text + "@convoy.x\nclass ModelNew: pass\n\n\n# end\n")
    assert problem_text(tmp_path / "kept.py") == '# What\n# it is.\n\nTEXT = """a\n\n\n\n\nb"""\n\n\n# end'


def test_inputs_that_cannot_be_written(tmp_path):
    from convoy.eject_model import build_model
    from convoy.problem import Bad, load

    (tmp_path / "bad.py").write_text(FOLD.replace("return [torch.rand(16, 8, 128, 128)]", "return [[1, 2]]"))
    with pytest.raises(Bad, match="input 0 is a list"):
        build_model(load(tmp_path / "bad.py"), "bad.py")


def test_floats_read_back():
    from convoy.eject_text import float_text

    assert [float_text(v) for v in (1e-5, 0.5, 3.0, 0.0)] == ["1e-05f", "0.5f", "3.0f", "0.0f"]
    for number in (0.1, 1 / 3, 2.0**-126, 16777217.0):
        assert C.c_float(float(float_text(number)[:-1])).value == C.c_float(number).value
