"""One peer on the GPU in its own process: a task per line in, a row per line out.

A task is {"chain", "precision", "repeats"}. Times are CUDA events around one run on the current stream, the L2 cache
flushed before each by writing more than it holds; inputs alternate. The flush also keeps the GPU busy while the
run is being launched, so that what is measured is the GPU's time. Errors are against float64 on some samples.

A task with a "peer" is to be compiled and run once, whoever this process is for: that fills the caches on disk, and
processes that measure later find machine code there. What a peer chooses by the clock is never kept: it chooses in the
process that measures, where nothing else is running.
"""

import functools
import gc
import json
import os
import platform
import statistics
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import torch

import chains
import peers
from convoy.binding import CVY_ALIGN, CVY_INPUT, CVY_KEEP_PREPARED, CVY_OUTPUT

INPUTS = 2  # that alternate
SAMPLES = 8  # of the batch whose outputs are compared with float64
BUSY = 0.05  # seconds of runs that are not counted
ENOUGH = 2.0  # seconds of timed runs
FEWEST = 5  # runs, however slow


class Gpu:
    """The device, its clock, and what is to be known of it."""

    name = "cuda"

    def __init__(self):
        if not torch.cuda.is_available():
            raise OSError("PyTorch sees no GPU here")
        self.properties = torch.cuda.get_device_properties(0)
        self.start, self.stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    @functools.cached_property
    def scratch(self):
        """Many times the cache: writing it takes a quarter of a millisecond on an H200, longer than launching a chain."""
        cache = getattr(self.properties, "L2_cache_size", 1 << 26)
        return torch.empty(max(16 * cache, 1 << 30), dtype=torch.uint8, device=self.name)

    def stream(self):
        return torch.cuda.current_stream().cuda_stream

    def flush(self):
        self.scratch.zero_()

    def time(self, run):
        """Milliseconds of one run."""
        self.start.record()
        run()
        self.stop.record()
        self.stop.synchronize()
        return self.start.elapsed_time(self.stop)

    def wait(self):
        torch.cuda.synchronize()

    def tidy(self):
        """Frees memory. False if the device is lost to this process, as it is after a kernel's invalid access."""
        gc.collect()
        try:
            self.wait()
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
        return True

    def machine(self):
        return {"name": self.properties.name, "peak_gbps": self.bandwidth(), "peak_gflops": None}

    def bandwidth(self):
        """GB/s of a copy through memory, read and write counted."""
        a = torch.empty(1 << 28, device=self.name)
        b = torch.empty_like(a)
        b.copy_(a)
        return 8e-6 * a.numel() / statistics.median(self.time(lambda: b.copy_(a)) for _ in range(10))

    def versions(self):
        return {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}


# ---- peers: prepare(device, chain, inputs, params, precision) gives run(i) ----


def convoy(device, chain, inputs, params, precision):
    plan = peers.Convoy(chain.text, device=device.name, precision=precision)
    out = next(torch.full(shape, torch.nan, device=device.name)
               for _, role, shape in plan.tensors if role == CVY_OUTPUT)
    workspace = torch.empty(plan.workspace + CVY_ALIGN, dtype=torch.uint8, device=device.name)
    address = workspace.data_ptr() + -workspace.data_ptr() % CVY_ALIGN
    known = {n: torch.from_numpy(p).to(device.name) for n, p in params.items()}
    sets = []
    for x in inputs:
        arrays = [out if role == CVY_OUTPUT else x if role == CVY_INPUT else known[name]
                  for name, role, _ in plan.tensors]
        sets.append(plan.buffers([a.data_ptr() for a in arrays]))
    state = {"flags": 0, "alive": (workspace, known)}

    def run(i):
        plan.run(sets[i], address, state["flags"], device.stream())
        state["flags"] = CVY_KEEP_PREPARED
        return out

    run.extra = plan.cost()
    run.close = plan.close
    return run


def module_of(device, chain, params, layout):
    module = chains.torch_module(chain, params).to(device.name)
    return module.to(memory_format=layout) if len(chain.shape) == 4 else module


def convoy_compile(device, chain, inputs, params, precision):
    """The PyTorch front end: the same plan, called as people call it."""
    import convoy as package

    fast = package.compile(module_of(device, chain, params, torch.contiguous_format), precision=precision)

    def run(i):
        with torch.inference_mode():
            return fast(inputs[i])

    return run


def forget_choices(mode):
    """Code of earlier compilations is taken from disk, what they chose by the clock is not. Where autotuning chooses whole
    kernels, the choice is part of the graph that is kept, so only single kernels are found again."""
    import torch._functorch.config
    import torch._inductor.config

    torch._dynamo.reset()
    torch._inductor.config.autotune_local_cache = False
    kept = mode == "default"
    torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = kept


def pytorch(mode, layout):
    def prepare(device, chain, inputs, params, precision):
        module = module_of(device, chain, params, layout)
        xs = [x.contiguous(memory_format=layout) if x.dim() == 4 else x for x in inputs]
        if mode:
            forget_choices(mode)
            module = torch.compile(module, mode=None if mode == "default" else mode, dynamic=False)

        def run(i):
            with torch.inference_mode():
                return module(xs[i])

        return run

    return prepare


LAYOUTS = {"": torch.contiguous_format, " channels_last": torch.channels_last}
MODES = {"torch eager": None, "torch.compile": "default", "torch.compile max-autotune": "max-autotune"}
PEERS = {"convoy": convoy, "convoy.compile": convoy_compile} | {
    name + suffix: pytorch(mode, layout) for name, mode in MODES.items() for suffix, layout in LAYOUTS.items()
}


def find_nvrtc():
    """NVRTC comes with PyTorch's wheels; the library is told where."""
    site = Path(torch.__file__).resolve().parents[1] / "nvidia"
    found = sorted(site.glob("**/libnvrtc.so.1[23]"))
    if found:
        os.environ.setdefault("CVY_NVRTC_LIB", str(found[-1]))


def set_precision(precision, benchmark=True):
    """`benchmark`: cuDNN times its algorithms and takes the fastest."""
    allowed = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = benchmark


# ---- a row ----


class Data:
    """Inputs, parameters and float64 outputs of a chain, kept for its other precision. All depend on its text alone."""

    def __init__(self, device, text):
        self.device, self.text, self.chain = device.name, text, chains.parse(text)
        _, self.params = chains.data_of(self.chain, 0)
        dice = torch.Generator(self.device).manual_seed(zlib.crc32(text.encode()))
        self.inputs = [torch.rand(self.chain.shape, generator=dice, device=self.device) for _ in range(INPUTS)]
        batch = self.chain.shape[0]
        self.samples = np.unique(np.linspace(0, batch - 1, min(batch, SAMPLES)).astype(int)).tolist()

    @functools.cached_property
    def want(self):
        """Sample by sample, since no operator of the suites mixes them."""
        set_precision("fp32", benchmark=False)  # one look at each shape: timing algorithms would take longer
        module = chains.torch_module(self.chain, self.params, torch.float64).to(self.device)
        with torch.inference_mode():
            return torch.cat([module(self.inputs[0][i : i + 1].double()) for i in self.samples])

    def bytes(self):
        """That must move: inputs and parameters read once, outputs written once."""
        size = np.prod(self.chain.shape) + sum(np.prod(s) for s in self.chain.params.values())
        return int(4 * (size + self.want[0].numel() * self.chain.shape[0]))


def error(run, data):
    off = (run(0)[data.samples].double() - data.want).abs()
    worst = off.max().item()
    return {"max_abs_error": worst, "rms_error": off.square().mean().sqrt().item(),
            "rel_error": worst / (data.want.abs().max().item() or 1.0)}


def timed(device, run, inputs, repeats):
    """Milliseconds of each run. Compiling leaves the GPU idle and its clocks low, so it is kept busy first."""
    warm, start = 0, time.perf_counter()
    while warm < 3 or time.perf_counter() - start < BUSY:
        device.flush()
        device.time(lambda: run(warm % inputs))
        warm += 1
    times, start = [], time.perf_counter()
    while len(times) < repeats and (len(times) < FEWEST or time.perf_counter() - start < ENOUGH):
        device.flush()
        times.append(device.time(lambda: run(len(times) % inputs)))
    return times


def measure(device, run, data, task):
    """The error is that of a run after the timed ones: what earlier runs left there must not show."""
    times = timed(device, run, len(data.inputs), task["repeats"])
    row = {"ms": statistics.median(times), "ms_min": min(times), "runs": len(times), "bytes": data.bytes()}
    return row | error(run, data) | {"samples_checked": len(data.samples), **getattr(run, "extra", {})}


def serve(device, name, data, task):
    warming = "peer" in task
    wanted = None if warming else data.want
    set_precision(task["precision"], benchmark=not warming)
    start = time.perf_counter()
    run = PEERS[task.get("peer", name)](device, data.chain, data.inputs, data.params, task["precision"])
    try:
        run(0)  # the first run compiles
        device.wait()
        row = {"prepare_s": round(time.perf_counter() - start, 3)}
        return row if wanted is None else row | measure(device, run, data, task)
    finally:
        getattr(run, "close", lambda: None)()


def main(make_device=Gpu):
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like; standard output is for answers
    name = sys.argv[1]
    find_nvrtc()
    try:
        device = make_device()
        versions = {"python": platform.python_version(), **device.versions(), **peers.ConvoyPeer().version()}
        print(json.dumps({"versions": versions, "machine": device.machine()}), file=answers)
    except (ImportError, OSError) as missing:
        print(json.dumps({"missing": str(missing)}), file=answers)
        return
    data, first = None, True
    for line in sys.stdin:
        task = json.loads(line)
        try:
            if data is None or data.text != task["chain"]:
                data = None
                data = Data(device, task["chain"])
            row = serve(device, name, data, task)
        except Exception as failure:  # a peer that cannot take a chain is a row that says so
            row = {"error": f"{type(failure).__name__}: {failure}".split("\n")[0][:300]}
        dead = not device.tidy()
        print(json.dumps(row | {"dead": True} if dead else row), file=answers)
        if dead:
            return
        if first:
            gc.freeze()  # the libraries are loaded now: collecting need not look at them again
            first = False


if __name__ == "__main__":
    main()
