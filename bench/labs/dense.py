"""Products, convolutions and reductions one by one on a GPU, beside PyTorch at the same precision, with errors.

    python bench/labs/dense.py [--only TEXT] [--precision fp32,tf32,bf16,fp16] [--repeats N] [--kernels] [CASE...]

A case is `chain ; torch expression of x and the other tensors' names`, such as
`x[512,1024] | linear(2048,bias=False) ; F.linear(x, n1_weight)`, and perhaps `; name.mT` or `; x channels_last`: how
tensors lie. Without cases, those of CASES. Times are medians of CUDA events around one run, the L2 flushed before it; Convoy and
PyTorch in turn. The error is the largest against float64, of the largest result, on some rows. --kernels adds each
launch's own time. Machine code is compiled first, by several processes.
"""

import argparse
import ctypes as C
import multiprocessing
import statistics
import sys
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parents[2] / "python")]

from convoy import binding  # noqa: E402

CASES = """
x[1024,8192] | linear(8192,bias=False) ; F.linear(x, w)
x[16384,1024] | linear(4096,bias=False) ; F.linear(x, w)
x[4096,4096], y[4096,4096] | matmul(@y) ; x @ y
x[4096,4096], y[4096,4096] | matmul(@y) ; x @ y ; y.mT
x[4096,4096], y[4096,4096] | matmul(@y) ; x @ y ; x.mT
x[128,512,1024], y[128,1024,2048] | matmul(@y) ; x @ y
x[16384,1024] | linear(4096) | gelu ; F.gelu(F.linear(x, w, b))
x[16,500000], y[500000,64] | matmul(@y) ; x @ y
x[4096,4096], y[4096,1] | matmul(@y) ; x @ y
x[4096,8192], y[8192,5] | matmul(@y) ; x @ y
x[1,8192] | linear(8192,bias=False) ; F.linear(x, w)
"""
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
BOUNDS = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 8e-3, "fp16": 2e-3}


class Plan:
    def __init__(self, text, precision):
        lib = binding.lib
        self.lib, self.graph, self.plan = lib, C.c_void_p(), C.c_void_p()
        options = binding.cvy_options(
            size=C.sizeof(binding.cvy_options), device=binding.CVY_CUDA,
            precision=binding.CVY_TF32 if precision == "tf32" else binding.CVY_FP32)
        self.check(lib.cvy_graph_parse(text.encode(), C.byref(self.graph)))
        self.check(lib.cvy_plan_create(self.graph, C.byref(options), C.byref(self.plan)))
        self.tensors = []
        for i in range(lib.cvy_graph_tensors(self.graph)):
            t = binding.cvy_tensor()
            self.check(lib.cvy_graph_tensor(self.graph, i, C.byref(t)))
            self.tensors.append((t.name.decode(), t.role, tuple(t.dims[: t.rank])))
        self.workspace = lib.cvy_plan_workspace(self.plan)

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.cvy_last_error().decode())

    def predicted(self):
        cost = binding.cvy_cost()
        self.check(self.lib.cvy_plan_cost(self.plan, C.byref(cost)))
        return 1e6 * cost.seconds

    def notes(self):
        needed = C.c_size_t()
        self.check(self.lib.cvy_plan_print(self.plan, None, 0, C.byref(needed)))
        text = C.create_string_buffer(needed.value)
        self.check(self.lib.cvy_plan_print(self.plan, text, needed.value, None))
        return [line.strip() for line in text.value.decode().splitlines() if "product" in line]

    def close(self):
        self.lib.cvy_plan_free(self.plan)
        self.lib.cvy_graph_free(self.graph)


def chain_for(text, precision):
    """The chain with its sources in the dtype that is asked for."""
    kind = {"bf16": ":bf16", "fp16": ":fp16"}.get(precision, "")
    head, _, rest = text.partition("|")
    return head.rstrip().replace("]", "]" + kind) + " | " + rest.strip()


def compile_one(task):
    try:
        Plan(chain_for(*task), task[1]).close()
    except RuntimeError as e:
        return f"{task}: {e}"
    return None


def lay(torch, tensors, how):
    name, _, layout = how.replace(".", " ").partition(" ")
    if layout == "mT":
        tensors[name] = tensors[name].mT.contiguous().mT
    elif layout == "channels_last":
        kind = torch.channels_last if tensors[name].dim() == 4 else torch.channels_last_3d
        tensors[name] = tensors[name].contiguous(memory_format=kind)


class Case:
    def __init__(self, torch, line, precision):
        chain, expression, *layouts = [part.strip() for part in line.split(";")]
        self.torch, self.plan = torch, Plan(chain_for(chain, precision), precision)
        dtype = getattr(torch, DTYPES[precision])
        self.tensors, self.order = {}, []
        for name, role, shape in self.plan.tensors:
            if role == binding.CVY_OUTPUT:
                self.out = torch.full(shape, torch.nan, dtype=dtype, device="cuda")
                self.order.append(None)
                continue
            alias = "w" if name.endswith("weight") and "w" not in self.tensors else "b" if name.endswith("bias") else name
            self.tensors[alias] = torch.randn(shape, device="cuda").to(dtype)
            self.order.append(alias)
        for how in layouts:
            lay(torch, self.tensors, how)
        self.expression = compile(expression, "case", "eval")
        self.space = torch.empty(self.plan.workspace + 1024, dtype=torch.uint8, device="cuda")
        self.flags = 0

    def convoy(self):
        buffers, alive = (binding.cvy_buffer * len(self.order))(), []
        for i, name in enumerate(self.order):
            t = self.out if name is None else self.tensors[name]
            strides = (C.c_int64 * t.dim())(*t.stride())
            alive.append(strides)
            buffers[i] = binding.cvy_buffer(t.data_ptr(), strides)
        at = self.space.data_ptr() + -self.space.data_ptr() % 256
        self.plan.check(self.plan.lib.cvy_plan_run(
            self.plan.plan, buffers, len(buffers), at, self.plan.workspace, self.flags,
            self.torch.cuda.current_stream().cuda_stream))
        self.flags = binding.CVY_KEEP_PREPARED
        return self.out

    def eager(self, tensors=None):
        return eval(self.expression, {"torch": self.torch, "F": self.torch.nn.functional, **(tensors or self.tensors)})

    def error(self):
        """Against float64; of large tensors the first rows of x alone."""
        torch, x = self.torch, self.tensors["x"]
        rows = slice(0, 64) if x.dim() == 2 and self.out.dim() == 2 else slice(0, 2) if x.dim() > 2 else slice(None)
        cut = {n: t[rows].double() if n == "x" or t.dim() == x.dim() > 2 and t.shape[0] == x.shape[0] else t.double()
               for n, t in self.tensors.items()}
        want, got = self.eager(cut), self.convoy()
        got = got[rows].double() if want.shape != got.shape else got.double()
        theirs = self.eager()
        theirs = theirs[rows].double() if want.shape != theirs.shape else theirs.double()
        scale = want.abs().max()
        return tuple(((v - want).abs().max() / scale).item() for v in (got, theirs))


def median(torch, run, repeats, scratch):
    times = []
    for _ in range(repeats + 2):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        scratch.zero_()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(1e3 * start.elapsed_time(stop))
    return statistics.median(times[2:])


def kernel_times(torch, run):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return [f"{e.key[:60]} {e.device_time_total:.1f}" for e in found.key_averages()]


def measure(torch, line, precision, repeats, kernels, scratch):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    case = Case(torch, line, precision)
    ours, theirs = case.error()
    bad = "" if ours <= max(BOUNDS[precision], 2 * theirs) else "  WRONG"
    times = [[], []]
    for _ in range(2):
        times[0].append(median(torch, case.convoy, repeats, scratch))
        times[1].append(median(torch, case.eager, repeats, scratch))
    a, b = min(times[0]), min(times[1])
    print(f"{precision} {line:75} {a:9.1f} us, PyTorch {b:9.1f}, {b / a:5.2f}x, predicted {case.plan.predicted():8.1f}, "
          f"error {ours:.1e} ({theirs:.1e}){bad}", flush=True)
    if kernels:
        for note in (*case.plan.notes(), *kernel_times(torch, case.convoy)):
            print("      " + note, flush=True)
    case.plan.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--precision", default="bf16,tf32,fp32")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    lines = [line for line in args.cases or CASES.strip().splitlines() if args.only in line]
    tasks = [(line.split(";")[0].strip(), p) for p in args.precision.split(",") for line in lines]
    with multiprocessing.get_context("spawn").Pool(12) as pool:
        for failure in filter(None, pool.map(compile_one, tasks, chunksize=1)):
            print(failure)

    import torch

    torch.backends.cudnn.benchmark = True
    scratch = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    for precision in args.precision.split(","):
        for line in lines:
            try:
                with torch.inference_mode():
                    measure(torch, line, precision, args.repeats, args.kernels, scratch)
            except (RuntimeError, AssertionError) as e:
                print(f"{precision} {line}: {e}", flush=True)


if __name__ == "__main__":
    main()
