"""`convoy bench FILE.py`: checks a problem file's model, then times it against eager PyTorch and torch.compile.

A problem file defines `Model`, `get_init_inputs()` and `get_inputs()`, and optionally `ModelNew`, which is
`convoy.compile(Model(...))` by default. Both models are built from the same random state. Their results are compared with float64
and with eager PyTorch for the inputs times 1, 3, 0.01 and -1.
"""

import argparse
import contextlib
import copy
import datetime
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves, tree_map

from . import compile as compile_module
from .engine import ConvoyError, check_environment, lib
from .module import Compiled, dispatcher_of
from .settings import meant

FACTORS = (1, 3, 0.01, -1)
SEED = 42
SECONDS = 2.0  # of timed runs
NAMES = {"eager": "eager PyTorch", "compile": "torch.compile", "convoy": "Convoy"}
# Largest error allowed, as a share of the largest value; or a few times eager's own, if that is more.
TOLERANCES = {"fp32": 5e-6, "tf32": 5e-3, "torch": 5e-3}
OWN_ERROR = 4
BUSY_SHARE, BUSY_SECONDS = 0.2, 0.2  # share of the processors that others may use; shortest time that can be judged
CHECKED_BYTES = 64 << 20  # of inputs that are also computed in float64


class Bad(Exception):
    """A file, an option or a device that cannot be used: exit status 2."""


# ---- the file ----------------------------------------------------------------------------------------------------


def load(path):
    path = Path(path)
    if not path.is_file():
        raise Bad(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    with about(path, "cannot be loaded"):
        spec.loader.exec_module(module)
    needed = ("Model", "get_inputs", "get_init_inputs")
    missing = [name for name in needed if not callable(getattr(module, name, None))]
    if missing:
        raise Bad(f"{path}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    if not (isinstance(module.Model, type) and issubclass(module.Model, torch.nn.Module)):
        raise Bad(f"{path}: Model is not an nn.Module")
    return module


@contextlib.contextmanager
def about(path, what):
    """Errors of the file's code, with the place where they occurred."""
    try:
        yield
    except Bad:
        raise
    except SyntaxError as error:
        raise Bad(f"{path}: {what}: line {error.lineno}: {error.msg}") from error
    except Exception as error:
        lines = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f"line {lines[-1].lineno}: " if lines else ""
        raise Bad(f"{path}: {what}: {where}{type(error).__name__}: {error}") from error


def build(problem, path, precision, device):
    """The model, the new one, and the inputs, on a device."""
    with about(path, "get_init_inputs() fails"):
        arguments = problem.get_init_inputs()
    if not isinstance(arguments, (list, tuple)):
        raise Bad(f"{path}: get_init_inputs() gives {type(arguments).__name__}, not a list")
    with about(path, "Model cannot be built"):
        torch.manual_seed(SEED)
        model = problem.Model(*arguments).to(device).eval()
    with about(path, "ModelNew cannot be built"):
        torch.manual_seed(SEED)
        new = getattr(problem, "ModelNew", problem.Model)(*arguments).to(device).eval()
    if isinstance(new, Compiled) or type(new) is problem.Model:  # a subclass has its own forward
        new = compile_module(new, precision=precision)
    with about(path, "get_inputs() fails"):
        torch.manual_seed(SEED)
        inputs = problem.get_inputs()
    if not isinstance(inputs, (list, tuple)):
        raise Bad(f"{path}: get_inputs() gives {type(inputs).__name__}, not a list")
    inputs = tree_map(lambda t: t.to(device) if isinstance(t, torch.Tensor) else t, list(inputs))
    return model, new, inputs


# ---- agreement ---------------------------------------------------------------------------------------------------


def scaled(inputs, factor):
    return tree_map(lambda t: t * factor if isinstance(t, torch.Tensor) and t.is_floating_point() else t, inputs)


def few_samples(inputs):
    """The first samples of every input, if they share a large batch: float64 is slow and large."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    total = sum(t.numel() * t.element_size() for t in tensors)
    batch = {t.shape[0] for t in tensors if t.dim()}
    if total <= CHECKED_BYTES // 8 or len(batch) != 1:
        return inputs
    keep = max(1, int(batch.pop() * (CHECKED_BYTES // 8) / total))
    return [t[:keep] if isinstance(t, torch.Tensor) and t.dim() else t for t in inputs]


def floats(results):
    return [r for r in tree_leaves(results) if isinstance(r, torch.Tensor)]


def distance(a, b):
    """Largest difference; inf if one is NaN or infinite and the other is not the same."""
    both = torch.isfinite(a) & torch.isfinite(b)
    same = both | (a == b) | (torch.isnan(a) & torch.isnan(b))
    if not same.all():
        return float("inf")
    return (a[both].double() - b[both].double()).abs().max().item() if both.any() else 0.0


def size_of(results):
    found = [r[torch.isfinite(r)].abs().max().item() for r in results if torch.isfinite(r).any()]
    return max(found, default=0.0)


def compare(model, new, inputs, precision):
    """Errors for one set of inputs: against float64 on some samples, against eager on all."""
    few = few_samples(inputs)
    exact = floats(copy.deepcopy(model).double()(*tree_map(to_double, few)))
    eager, ours = floats(model(*few)), floats(new(*few))
    whole_eager, whole_ours = floats(model(*inputs)), floats(new(*inputs))
    if [t.shape for t in whole_eager] != [t.shape for t in whole_ours]:
        return {"max_abs": float("inf"), "agree": False, "reason": "the shapes differ from eager PyTorch's"}
    scale = max(size_of(exact), size_of(whole_eager))
    error = max(map(distance, ours, exact), default=0.0)
    own = max(map(distance, eager, exact), default=0.0)
    apart = max(map(distance, whole_ours, whole_eager), default=0.0)
    allowed = max(TOLERANCES[precision] * scale, OWN_ERROR * own)
    return {
        "max_abs": error,
        "rel": error / scale if scale else 0.0,
        "eager_max_abs": own,
        "from_eager": apart,
        "scale": scale,
        "agree": error <= allowed and apart <= allowed + own,
    }


def to_double(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


# ---- time --------------------------------------------------------------------------------------------------------


def taken(processors):
    """Seconds for which these processors were not idle, and those of this process; nan if the system does not say."""
    try:
        lines = [line.split() for line in open("/proc/stat") if line.startswith("cpu")]
    except OSError:
        lines = []
    ticks = [list(map(int, words[1:9])) for words in lines if words[0][3:].isdigit() and int(words[0][3:]) in processors]
    own = os.times()
    busy = sum(sum(t) - t[3] - t[4] for t in ticks) / os.sysconf("SC_CLK_TCK") if ticks else float("nan")
    return busy, own.user + own.system


class Load:
    """`others`: how many processors other processes used during a measurement; `busy`: so many that the times are not
    reliable. Ticks are hundredths of a second, so short measurements are not judged."""

    def __enter__(self):
        self.processors = os.sched_getaffinity(0)
        self.before, self.start = taken(self.processors), time.perf_counter()
        return self

    def __exit__(self, *_):
        wall, now = time.perf_counter() - self.start, taken(self.processors)
        self.others = max(0.0, (now[0] - self.before[0] - (now[1] - self.before[1])) / wall)
        self.busy = wall >= BUSY_SECONDS and self.others > BUSY_SHARE * len(self.processors)


@dataclass
class Times:
    """Milliseconds of some runs. spread: half the interquartile range."""

    median: float
    least: float
    spread: float


def times_of(function, inputs, device, seconds=SECONDS):
    """On the CPU, the time from call to return. On the GPU, the device's time after writes of a GiB: nothing of the inputs
    is left in the L2 cache, and the host has issued everything before the device gets to it."""
    function(*inputs)
    function(*inputs)
    times, total = [], 0.0
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=device) if device.type == "cuda" else None
    while len(times) < 3 or (total < seconds and len(times) < 1000):
        start = time.perf_counter()
        if flush is None:
            function(*inputs)
            times.append(1e3 * (time.perf_counter() - start))
        else:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(4):
                flush.zero_()
            first.record()
            function(*inputs)
            last.record()
            torch.cuda.synchronize(device)
            times.append(first.elapsed_time(last))
        total += time.perf_counter() - start
    quarters = statistics.quantiles(times, n=4)
    return Times(statistics.median(times), min(times), (quarters[2] - quarters[0]) / 2)


def compiled(model, inputs):
    """The model under torch.compile, compiled for these inputs; None and the reason if that fails, for example because a C++
    compiler is missing."""
    new = torch.compile(copy.deepcopy(model))
    try:
        new(*inputs)
    except Exception as error:
        return None, f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return new, None


def roofline_ms(new):
    """The time to read inputs once and write outputs once, from the plans; None if there is no region."""
    if not isinstance(new, Compiled):
        return None
    entries = list(dispatcher_of(new).entries.values())
    runners = entries[-1].runners if entries else []
    return 1e3 * sum(r.plan.cost().floor for r in runners) if runners else None


def machine_name(device):
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


# ---- the command -------------------------------------------------------------------------------------------------


def parsed(parser, arguments):
    """Like parse_args(), but the message about an unknown option proposes the nearest one."""
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [name for action in parser._actions for name in action.option_strings]
        parser.error(f"unknown option {unknown[0]!r}{meant(unknown[0].split('=')[0], known) or '; --help lists them'}")
    return options


def positive(kind):
    """The type of an option: a number above zero."""

    def parse(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value

    parse.__name__ = "positive number"  # argparse says: invalid positive number value: '-3'
    return parse


def pick_device(name):
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise Bad("--device cuda: PyTorch finds no GPU")
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def measure(path, options):
    problem, device = load(path), pick_device(options.device)
    model, new, inputs = build(problem, path, options.precision, device)
    with torch.no_grad():
        with about(path, "Model fails"):
            model(*inputs)
        errors = []
        for factor in FACTORS:
            progress(f"comparing with float64 and eager PyTorch, inputs times {factor:g}")
            errors.append({"factor": factor, **compare(model, new, scaled(inputs, factor), options.precision)})
        agree = all(e["agree"] for e in errors)
        functions, why = {"eager": model, "compile": None, "convoy": new}, None
        if options.compile:
            progress("torch.compile: compiling")  # before the clock and the look at other processes start: it has workers
            functions["compile"], why = compiled(model, inputs)
        times = dict.fromkeys(functions)
        with Load() as meanwhile:
            for name, function in functions.items():
                if function is not None:  # a module may have a length, so it may be false
                    progress(f"timing {NAMES[name]}")
                    times[name] = times_of(function, inputs, device, options.seconds)
        progress(None)
    return {
        "file": str(path),
        "device": device.type,
        "machine": machine_name(device),
        "precision": options.precision,
        "agree": agree,
        "errors": errors,
        "roofline_ms": roofline_ms(new),
        "ms": {way: t and t.median for way, t in times.items()},
        "ms_least": {way: t and t.least for way, t in times.items()},
        "ms_spread": {way: t and t.spread for way, t in times.items()},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "version": lib.cvy_version().decode(),
        "torch": torch.__version__,
        "others": meanwhile.others,
        "busy": meanwhile.busy and device.type == "cpu",
        "compile_error": why,
        "threads": torch.get_num_threads(),
    }


def progress(what):
    """One line on standard error; on a terminal the next one overwrites it. None: clears the line."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what or ''}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr, flush=True)


def print_text(result):
    what = ", ".join(str(result[key]) for key in ("device", "machine", "precision"))
    print(f"{result['file']}: {what}, {result['threads']} threads")
    print(f"  {'inputs':>8} {'error':>11} {'relative':>11} {'eager error':>11} {'difference':>11}")
    for e in result["errors"]:
        numbers = " ".join(f"{e.get(k, float('nan')):11.2e}" for k in ("max_abs", "rel", "eager_max_abs", "from_eager"))
        print(f"  {'x ' + format(e['factor'], 'g'):>8} {numbers}  {'agrees' if e['agree'] else 'DISAGREES'}")
    ours = result["ms"]["convoy"]
    print(f"  {'ms':>8} {'median':>10} {'minimum':>10} {'spread':>10}")
    for name, ms in result["ms"].items():
        if ms is None:
            print(f"  {name:>8} {'-':>10}  {result['compile_error'] or 'left out (--no-compile)'}")
            continue
        ratio = "" if name == "convoy" or result["busy"] else f"  {ms / ours:6.2f} times Convoy's"
        print(f"  {name:>8} {ms:10.3f} {result['ms_least'][name]:10.3f} {result['ms_spread'][name]:10.3f}{ratio}")
    if result["busy"]:
        print(f"  BUSY: other processes used {result['others']:.1f} of {len(os.sched_getaffinity(0))} processors; "
              "these times are not reliable")
    if result["roofline_ms"]:
        print(f"  {'memory':>8} {result['roofline_ms']:10.3f} ms  inputs read once, outputs written once")


def bench(arguments):
    parser = argparse.ArgumentParser("convoy bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", metavar="FILE.py", help="defines Model, get_init_inputs() and get_inputs()")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--precision", choices=tuple(TOLERANCES), default="fp32")
    parser.add_argument("--threads", type=positive(int), help="CPU threads (default: PyTorch's own number)")
    parser.add_argument("--seconds", type=positive(float), default=SECONDS, help="how long to time each of the three (default 2)")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parsed(parser, arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        check_environment()
        result = measure(options.file, options)
    except (Bad, ConvoyError) as error:
        print(f"convoy: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(finite(result)))
    else:
        print_text(result)
    if not result["agree"]:
        print("convoy: the results do not agree", file=sys.stderr)
    return 0 if result["agree"] else 1


def finite(value):
    """JSON has no inf and no NaN: null."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and value - value != 0 else value
