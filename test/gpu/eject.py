"""eject.py [FILE.py...]: are results of ejected files, bit for bit, those of convoy.compile()? On this machine's GPU.

Each problem file (default: examples/block_*.py, and the small ones of test/torch/test_eject.py) is ejected in fp32 and
tf32, compiled, and run beside convoy.compile() with the same parameters and all regions, as the file has them: twice, on
other inputs, after a parameter has changed, on another stream, and replayed as a CUDA graph. `make gpu-test` runs it
where PyTorch, nvcc and ninja are, and says what is missing elsewhere. Exit status 1: some bit differs, or a file does
not compile or run; the others are compared all the same.
"""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "test" / "eject")]
COMPILERS = 9  # at once
TOLD = 12  # lines of a compiler's errors


def missing():
    """What this check needs and does not find."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch (GPU_PYTHON names an interpreter that has it)"
    import torch
    from torch.utils import cpp_extension

    if not torch.cuda.is_available():
        return "a GPU that PyTorch sees"
    if cpp_extension.CUDA_HOME is None:
        return "nvcc"
    if not cpp_extension.is_ninja_available():
        return "ninja"
    return None if shutil.which("c++") else "a C++ compiler"


def same_bits(ours, theirs):
    import torch
    from torch.utils._pytree import tree_leaves

    pairs = list(zip(tree_leaves(ours), tree_leaves(theirs), strict=True))
    values = 0
    for a, b in pairs:
        if a.dtype != b.dtype or a.shape != b.shape:
            return 0
        if not torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
            return 0
        values += a.numel()
    return values


def scaled(inputs, factor):
    import torch

    return [t * factor if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in inputs]


def replayed(model, inputs):
    """The results of a CUDA graph's second replay."""
    import torch

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(*inputs)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        results = model(*inputs)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    return results


def ejected(path, precision, folder):
    from convoy.eject import eject_file

    file = Path(folder) / f"{path.stem}_{precision}.py"
    file.write_text(eject_file(path, precision)[0])
    return file


def imported(file):
    loader = importlib.machinery.SourceFileLoader(file.stem, str(file))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(file.stem, loader))
    loader.exec_module(module)
    return module


def build(file):
    """Compiles ahead of time, since PyTorch's headers take a while: the next process finds it done."""
    command = [sys.executable, "-c", f"import {file.stem}; {file.stem}.compiled()"]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True)
    if done.returncode:
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        errors = list(dict.fromkeys(line for line in lines if "error:" in line or "fatal" in line))
        print("\n  ".join([f"eject: {file.stem} DOES NOT COMPILE", *(errors or lines[-TOLD:])[:TOLD]]), flush=True)
    return done.returncode == 0


def compare(module, precision):
    """(title, values that have the same bits, 0 if some differ) of each comparison."""
    import torch

    import convoy

    torch.manual_seed(1)
    theirs = convoy.compile(module.Model(*module.get_init_inputs()).cuda().eval(), precision=precision, regions="all")
    ours = module.ModelNew(*module.get_init_inputs()).cuda().eval()
    ours.load_state_dict(theirs.state_dict())
    inputs = [t.cuda() if isinstance(t, torch.Tensor) else t for t in module.get_inputs()]
    with torch.no_grad():
        yield "first call", same_bits(ours(*inputs), theirs(*inputs))
        yield "second call", same_bits(ours(*inputs), theirs(*inputs))
        yield "times -3", same_bits(ours(*scaled(inputs, -3)), theirs(*scaled(inputs, -3)))
        for model in (ours, theirs):
            next(model.parameters()).mul_(1.5)
        yield "a parameter changed", same_bits(ours(*inputs), theirs(*inputs))
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            yield "another stream", same_bits(ours(*inputs), theirs(*inputs))
        torch.cuda.synchronize()
        yield "replayed graph", same_bits(replayed(ours, inputs), theirs(*inputs))


def problems(folder):
    """The examples, and the small problems of the other test."""
    from problems import PROBLEMS

    for name, text in PROBLEMS.items():
        (Path(folder) / f"{name}.py").write_text(text)
    return [*sorted((ROOT / "examples").glob("block_*.py")), *(Path(folder) / f"{name}.py" for name in PROBLEMS)]


def told(file, precision):
    """How many comparisons failed."""
    bad = 0
    try:
        for title, values in compare(imported(file), precision):
            print(f"eject: {file.stem}, {title}: {f'{values} values, same bits' if values else 'DIFFERS'}", flush=True)
            bad += not values
    except Exception as error:
        print(f"eject: {file.stem} FAILS: {type(error).__name__}: {error}", flush=True)
        bad += 1
    return bad


def main():
    lacking = missing()
    if lacking:
        print(f"eject: NOT CHECKED, this machine lacks {lacking}")
        return 0
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(folder) / "built")
        paths = [Path(p).resolve() for p in sys.argv[1:]] or problems(folder)
        files = [(ejected(p, precision, folder), precision) for p in paths for precision in ("fp32", "tf32")]
        with ThreadPoolExecutor(COMPILERS) as pool:
            built = list(pool.map(build, (file for file, _ in files)))
        for (file, precision), fine in zip(files, built):
            bad += told(file, precision) if fine else 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
