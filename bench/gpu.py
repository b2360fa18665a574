"""`make gpu-bench`: A, B, C and single operators on an NVIDIA GPU, Convoy against PyTorch, precision against precision.

    python bench/gpu.py [--suite full|smoke] [--out FILE]

Runs where PyTorch sees a GPU and libconvoy.so is built. Times are CUDA events around one run, the L2 cache flushed in
front of each by writing more than it holds; median of 30 (fewer where a run is slow). Inputs alternate. `fp32` rows are
measured with tf32 forbidden in PyTorch, `tf32` rows with it allowed and Convoy asked for it. Errors are against
float64 on some samples of the batch.
"""

import argparse
import datetime
import gc
import json
import os
import platform
import shlex
import statistics
import sys
from pathlib import Path

import numpy as np
import torch

import chains
import peers
import suite

RESULTS = peers.ROOT / "bench" / "results"
MODES = {"torch eager": None, "torch.compile": "default", "torch.compile max-autotune": "max-autotune"}
LAYOUTS = {"": torch.contiguous_format, " channels_last": torch.channels_last}
SAMPLES = 8


def find_nvrtc():
    """NVRTC comes with PyTorch's wheels; the library is told where."""
    import glob

    site = Path(torch.__file__).resolve().parents[1] / "nvidia"
    found = sorted(glob.glob(str(site / "**" / "libnvrtc.so.1[23]"), recursive=True))
    if found and "CVY_NVRTC_LIB" not in os.environ:
        os.environ["CVY_NVRTC_LIB"] = found[-1]


def timed(run, inputs, flush, repeats):
    """Milliseconds of each run."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(3):
        run(i % inputs)
    torch.cuda.synchronize()
    times = []
    for i in range(repeats):
        flush.zero_()
        start.record()
        run(i % inputs)
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return times


def reference(chain, inputs, params):
    samples = np.unique(np.linspace(0, chain.shape[0] - 1, min(chain.shape[0], SAMPLES)).astype(int))
    module = chains.torch_module(chain, params, torch.float64).cuda()
    with torch.inference_mode():
        want = torch.cat([module(inputs[0][i : i + 1].double()) for i in samples])
    return samples.tolist(), want


def convoy_run(chain, inputs, params, precision):
    plan = peers.Convoy(chain.text, device="cuda", precision=precision)
    out = next(torch.empty(shape, device="cuda") for _, role, shape in plan.tensors if role == 2)
    workspace = torch.empty(plan.workspace + 256, dtype=torch.uint8, device="cuda")
    address = workspace.data_ptr() + -workspace.data_ptr() % 256
    known = {n: torch.from_numpy(p).cuda() for n, p in params.items()}
    sets = []
    for x in inputs:
        arrays = [out if role == 2 else x if role == 0 else known[name] for name, role, _ in plan.tensors]
        sets.append((peers.Buffer * len(arrays))(*(peers.Buffer(a.data_ptr(), None) for a in arrays)))
    state = {"flags": 0, "alive": (workspace, known)}

    def run(i):
        plan.run(sets[i], address, state["flags"], torch.cuda.current_stream().cuda_stream)
        state["flags"] = peers.KEEP_PREPARED
        return out

    cost = plan.cost()
    run.extra = {"flops": cost.flops, "passes": cost.passes, "ms_predicted": 1e3 * cost.seconds}
    run.close = plan.close
    return run


def torch_run(chain, inputs, params, mode, layout):
    torch._dynamo.reset()
    module = chains.torch_module(chain, params).cuda()
    if len(chain.shape) == 4:
        module = module.to(memory_format=layout)
        inputs = [x.contiguous(memory_format=layout) for x in inputs]
    if mode:
        module = torch.compile(module, mode=None if mode == "default" else mode, dynamic=False)

    def run(i):
        with torch.inference_mode():
            return module(inputs[i])

    return run


def error(run, samples, want):
    got = run(0)[samples].double()
    worst = (got - want).abs().max().item()
    return {"max_abs_error": worst, "rel_error": worst / (want.abs().max().item() or 1.0)}


def makers(case, chain, inputs, params, precision, quick):
    yield "convoy", lambda: convoy_run(chain, inputs, params, precision)
    for name, mode in MODES.items():
        for suffix, layout in LAYOUTS.items():
            few = case.series != "full" and (suffix or mode == "max-autotune")
            if not (few or quick and mode == "max-autotune"):
                yield name + suffix, lambda m=mode, f=layout: torch_run(chain, inputs, params, m, f)


def set_precision(precision):
    allowed = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True


def measure(case, precision, flush, args, keep):
    set_precision(precision)
    chain = chains.parse(case.chain)
    arrays, params = chains.data_of(chain)
    inputs = [torch.from_numpy(x).cuda() for x in arrays]
    samples, want = reference(chain, inputs, params)
    size = int(np.prod(chain.shape)) + sum(int(np.prod(s)) for s in chain.params.values())
    bytes_ = 4 * (size + want[0].numel() * chain.shape[0])
    flops = None
    for peer, make in makers(case, chain, inputs, params, precision, args.suite == "smoke"):
        row = {"block": case.block, "chain": case.chain, "series": case.series, "size": case.size, "peer": peer,
               "device": "cuda", "precision": precision, "threads": 0, "ms": None, "max_abs_error": None,
               "bytes": bytes_, "samples_checked": len(samples)}
        try:
            run = make()
            row |= error(run, samples, want)
            times = timed(run, len(inputs), flush, args.repeats)
            row |= {"ms": statistics.median(times), "ms_min": min(times), "runs": len(times)}
            row |= getattr(run, "extra", {})
            getattr(run, "close", lambda: None)()
        except Exception as failure:  # a row that says what went wrong
            row["error"] = f"{type(failure).__name__}: {failure}".split("\n")[0][:300]
        flops = row.setdefault("flops", flops)
        row["command"] = f"python bench/gpu.py --only '{case.chain}'"
        told = row.get("error") or f"{row['ms']:.4f} ms, error {row['max_abs_error']:.1e}"
        print(f"{case.title}, {precision}, {peer}: {told}", file=sys.stderr, flush=True)
        keep(row)
        run = None
        gc.collect()
        torch.cuda.empty_cache()


def bandwidth():
    """GB/s of a copy through memory, read and write counted."""
    a = torch.empty(1 << 28, device="cuda")
    b = torch.empty_like(a)
    times = timed(lambda i: b.copy_(a), 1, torch.empty(1, device="cuda"), 10)
    return 8e-6 * a.numel() / statistics.median(times)


def cases_of(args):
    made = suite.smoke() if args.suite == "smoke" else suite.blocks() + suite.operators()
    if args.suite == "smoke":
        made = [c for c in made if c.series in ("full", "operator")]
    if args.only:
        made = [c for c in made if args.only in (c.chain, c.block, c.series)] or [
            suite.Case(args.only, None, "chain", args.only, ())]
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", choices=("full", "smoke"), default="full")
    parser.add_argument("--only", metavar="TEXT", help="a block, a series, a chain of the suite, or any chain")
    parser.add_argument("--precision", action="append", choices=("fp32", "tf32"))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--out", type=Path, default=RESULTS / f"cuda-{datetime.date.today()}.json")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-bench: PyTorch sees no GPU here", file=sys.stderr)
        return 2
    find_nvrtc()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    partial = args.out.with_suffix(".partial")
    if args.fresh or not partial.exists():
        partial.write_text("")
    rows = [json.loads(line) for line in partial.read_text().splitlines()]

    def keep(row):
        rows.append(row)
        with partial.open("a") as f:
            f.write(json.dumps(row) + "\n")

    device = torch.cuda.get_device_properties(0)
    # A GiB: more than any L2, and long enough to write for the host to be ahead of the device.
    flush = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    for case in cases_of(args):
        for precision in args.precision or ("fp32", "tf32"):
            done = [r for r in rows if (r["chain"], r["precision"]) == (case.chain, precision)]
            if not any(r["peer"] == "torch.compile" for r in done):
                rows = [r for r in rows if r not in done]
                measure(case, precision, flush, args, keep)
    told = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": {"name": device.name, "peak_gbps": bandwidth(), "peak_gflops": None},
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda,
                         "cudnn": str(torch.backends.cudnn.version()), "python": platform.python_version(),
                         **peers.ConvoyPeer().version()},
            "command": shlex.join(["python", "bench/gpu.py", *sys.argv[1:]]) if sys.argv[1:] else "make gpu-bench",
            "suite": args.suite, "rows": rows}
    args.out.write_text(json.dumps(told, indent=1) + "\n")
    partial.unlink()
    print(f"written: {os.path.relpath(args.out)}")
    return 1 if any(r["peer"] == "convoy" and r.get("error") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
