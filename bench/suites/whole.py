"""Whole networks and blocks of diffusion models on the CPU, at small sizes: Convoy beside eager PyTorch, torch.compile, ONNX Runtime
and OpenVINO.

    python bench/suites/whole.py [--only TEXT ...] [--mode eval train] [--dtype fp32 bf16] [--peer NAME ...] [--threads 2] [--rounds 6]
                                 [--warm] [--fresh] [--out FILE]

`eval`: the module in .eval(); `train`: in .train(), forward without gradients (with gradients, training="auto" leaves a network to
PyTorch after its first backward). Every library runs in a process of its own with its default settings; for each case they take
turns, a short round each, and a time is the median of all calls. An error is the largest against float64, over the largest
result, with parameters and inputs of the dtype. ONNX Runtime and OpenVINO are given what torch.onnx exports, for the cases that say so.

Cases that --out has already (default: bench/results/networks/cpu-DATE.json) are not measured again. --warm only fills torch.compile's
cache on disk.
"""

import argparse
import datetime
import io
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python"), str(ROOT / "bench" / "modules")]

from process import Worker, busy

RESULTS = ROOT / "bench" / "results" / "networks"
IMAGES, BATCH = [(1, 3, 96, 96)], [(8, 3, 64, 64)]
ROUND = 0.25  # seconds of one peer's turn
SECONDS = 600  # that a peer may take to be ready: torch.compile builds C++ here
PEERS = ("convoy", "torch eager", "torch.compile", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Network:
    name: str
    make: str  # "module.name", and what is called with the arguments
    arguments: tuple = ()
    eval: tuple = tuple(IMAGES)
    train: tuple = tuple(BATCH)  # none: batch statistics make no difference, measured in .eval() alone
    exported: bool = False  # also measured with ONNX Runtime and OpenVINO


CASES = [
    Network("ResNet-18", "networks.resnet18"),
    Network("ResNet-50", "networks.resnet50", exported=True),
    Network("MobileNetV2", "networks.mobilenet_v2"),
    Network("EfficientNet-B0", "networks.efficientnet_b0"),
    Network("DenseNet-121", "networks.densenet121"),
    Network("VGG-16", "networks.vgg16"),
    Network("UNet with GroupNorm", "examples.unet.UNet", (3, 2, (32, 64, 128)), ((1, 3, 64, 64),), ((4, 3, 64, 64),)),
    Network("DCGAN generator", "networks.dcgan_generator", (), ((4, 100, 1, 1),), ((16, 100, 1, 1),)),
    Network("UNet residual block", "examples.unet_residual.Model", (128, 128, 512, 32), ((1, 128, 32, 32), (1, 512)), (), True),
    Network("UNet residual block, 192 to 64", "examples.unet_residual.Model", (192, 64, 512, 32), ((1, 192, 32, 32), (1, 512)), (), True),
    Network("VAE decoder block", "examples.vae_decoder.Model", (128, 64, 32), ((1, 128, 32, 32),), (), True),
    Network("VAE head", "blocks.diffusion_head", (64, 32), ((1, 64, 64, 64),), (), True),
    Network("video VAE block", "examples.video_vae.Model", (64, 32), ((1, 64, 4, 16, 16),), (), True),
]


# ---- a peer, in its own process ----------------------------------------------------------------------------------


def built(case, mode, dtype):
    """Module and inputs, the same numbers in every process."""
    import importlib

    import torch
    from cases import Case

    module, _, name = case.make.rpartition(".")
    make = getattr(importlib.import_module(module), name)
    shapes = list(getattr(case, mode))
    made, inputs = Case(case.name, lambda: make(*case.arguments), shapes, shapes).build(torch.device("cpu"))
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    return made.to(kind).train(mode == "train"), [x.to(kind) for x in inputs]


def exported(module, inputs):
    """The module as an ONNX model in memory."""
    import torch

    model, names = io.BytesIO(), [f"x{i}" for i in range(len(inputs))]
    torch.onnx.export(module, tuple(inputs), model, input_names=names, output_names=["y"], dynamo=False)
    return model.getvalue(), dict(zip(names, (x.numpy() for x in inputs)))


def prepare_convoy(module, inputs, threads):
    import convoy

    fast = convoy.compile(module)
    return lambda: fast(*inputs)


def prepare_eager(module, inputs, threads):
    return lambda: module(*inputs)


def prepare_compile(module, inputs, threads):
    import torch

    fast = torch.compile(module)
    return lambda: fast(*inputs)


def prepare_onnxruntime(module, inputs, threads):
    import onnxruntime
    import torch

    model, given = exported(module, inputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(None, given)[0])


def prepare_openvino(module, inputs, threads):
    import openvino
    import torch

    model, given = exported(module, inputs)
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(core.read_model(model), "CPU", settings).create_infer_request()
    tensors = {name: openvino.Tensor(x, shared_memory=True) for name, x in given.items()}

    def run():
        request.infer(tensors)
        return torch.from_numpy(request.get_output_tensor().data)

    return run


PREPARE = dict(zip(PEERS, (prepare_convoy, prepare_eager, prepare_compile, prepare_onnxruntime, prepare_openvino)))


def reference(case, mode, dtype):
    """The results in float64."""
    import torch

    module, inputs = built(case, mode, dtype)
    with torch.no_grad():
        return module.double()(*[x.double() for x in inputs])


class Peer:
    """Answers {"case", "mode", "dtype", "threads", "want"} with the error, then {"seconds"} with the times of its calls, in ms."""

    def __init__(self, name):
        self.name, self.run = name, None

    def prepare(self, task):
        import torch

        torch.set_num_threads(task["threads"])
        torch.compiler.reset()
        case = next(c for c in CASES if c.name == task["case"])
        module, inputs = built(case, task["mode"], task["dtype"])
        self.run = PREPARE[self.name](module, inputs, task["threads"])
        got = self.run()
        for _ in range(2):
            self.run()
        if not task.get("want"):
            return {}
        want = torch.load(task["want"])
        return {"error": ((got.double() - want).abs().max() / want.abs().max()).item()}

    def time(self, seconds):
        times, (everyone, mine), start = [], busy(), time.perf_counter()
        while not times or time.perf_counter() - start < seconds:
            begin = time.perf_counter()
            self.run()
            times.append(1e3 * (time.perf_counter() - begin))
        after, mine_after = busy()
        return {"times": times, "others": max(0.0, (after - everyone - (mine_after - mine)) / (time.perf_counter() - start))}


def serve(name):
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like
    import torch

    peer, versions = Peer(name), {"torch": torch.__version__}
    if name in ("onnxruntime", "openvino"):
        try:
            versions = {name: __import__(name).__version__}
        except ImportError as missing:
            return print(json.dumps({"missing": str(missing)}), file=answers)
    print(json.dumps({"versions": versions}), file=answers)
    with torch.no_grad():
        for line in sys.stdin:
            task = json.loads(line)
            try:
                row = peer.time(task["seconds"]) if "seconds" in task else peer.prepare(task)
            except Exception as failure:  # a row that says so
                row = {"failure": f"{type(failure).__name__}: {failure}".split("\n")[0][:300]}
            print(json.dumps(row), file=answers)


# ---- the run -----------------------------------------------------------------------------------------------------


class Run:
    def __init__(self, options):
        self.options, self.workers, self.versions, self.missing = options, {}, {}, {}

    def worker(self, peer):
        if peer not in self.workers and peer not in self.missing:
            found = Worker([sys.executable, __file__, "--serve", peer], dict(os.environ, OMP_NUM_THREADS=str(self.options.threads)))
            if "versions" in found.hello:
                self.workers[peer], self.versions = found, self.versions | found.hello["versions"]
            else:
                self.missing[peer] = found.hello.get("missing") or found.hello.get("error")
                print(f"{peer} is skipped: {self.missing[peer]}", file=sys.stderr)
        return self.workers.get(peer)

    def ready(self, case, mode, dtype, peers, want):
        """{peer: error} of those that can run the case."""
        found = {}
        for peer in peers:
            worker = self.worker(peer)
            if worker is None or (peer in PEERS[3:] and (not case.exported or mode == "train" or dtype != "fp32")):
                continue
            task = {"case": case.name, "mode": mode, "dtype": dtype, "threads": self.options.threads, "want": want}
            answer = worker.ask(task, SECONDS)
            if answer.get("dead"):
                del self.workers[peer]
            if "failure" in answer or answer.get("dead"):
                print(f"{case.name} {mode} {dtype}, {peer}: {answer.get('failure') or answer['error']}", file=sys.stderr)
            else:
                found[peer] = answer.get("error")
        return found

    def measure(self, case, mode, dtype):
        import torch

        with tempfile.TemporaryDirectory() as folder:
            want = os.path.join(folder, "want.pt")
            torch.save(reference(case, mode, dtype), want)
            errors = self.ready(case, mode, dtype, self.options.peer or PEERS, want)
        times, others = {p: [] for p in errors}, dict.fromkeys(errors, 0.0)
        for round_ in range(self.options.rounds):
            order = list(errors)
            for peer in order[round_ % len(order) :] + order[: round_ % len(order)]:
                answer = self.workers[peer].ask({"seconds": ROUND}, SECONDS)
                times[peer] += answer["times"]
                others[peer] = max(others[peer], answer["others"])
        common = {"series": f"network {mode}", "size": case.name, "chain": case.make, "block": None, "device": "cpu", "precision": "fp32",
                  "dtype": dtype, "threads": self.options.threads}
        return [common | {"peer": p, "ms": statistics.median(times[p]), "ms_min": min(times[p]), "runs": len(times[p]), "rel_error": e,
                          "max_abs_error": None, "others": others[p]} for p, e in errors.items()]

    def close(self):
        for worker in self.workers.values():
            worker.close()


def rounded(row):
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}


def key_of(row):
    return row["size"], row["series"], row["dtype"]


def save(options, run, rows):
    with open("/proc/cpuinfo") as f:
        name = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    told = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": {"name": name, "cores": len(os.sched_getaffinity(0))}, "versions": run.versions, "missing": run.missing,
            "command": "python bench/suites/whole.py", "rows": [rounded(r) for r in rows]}
    options.out.write_text(json.dumps(told, indent=0) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="networks with one of these in their names")
    parser.add_argument("--mode", nargs="*", default=["eval", "train"], choices=("eval", "train"))
    parser.add_argument("--dtype", nargs="*", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    parser.add_argument("--peer", action="append", choices=PEERS, help="only these")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no case is begun")
    parser.add_argument("--warm", action="store_true", help="only compile, for torch.compile")
    parser.add_argument("--fresh", action="store_true", help="measures again what --out has")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve)
    options.out = options.out or RESULTS / f"cpu-{datetime.date.today()}.json"
    wanted = [(c, m, d) for c in CASES if any(t in c.name for t in options.only) for d in options.dtype for m in options.mode if getattr(c, m)]
    known = json.loads(options.out.read_text()) if options.out.exists() else {"rows": [], "versions": {}}
    rows, run, start = known["rows"], Run(options), time.monotonic()
    run.versions, left = known["versions"], 0
    for case, mode, dtype in wanted:
        key = case.name, f"network {mode}", dtype
        if options.warm:
            began = time.monotonic()
            run.ready(case, mode, dtype, ["torch.compile"], None)
            print(*key, f"{time.monotonic() - began:.0f} s", flush=True)
            continue
        if not options.fresh and any(key_of(r) == key for r in rows):
            continue
        if time.monotonic() - start > options.budget:
            left += 1
            continue
        made = run.measure(case, mode, dtype)
        rows = [r for r in rows if key_of(r) != key] + made
        save(options, run, rows)
        told = ", ".join(f"{r['peer']} {r['ms']:.3f} ms ({r['rel_error']:.0e})" for r in made)
        print(f"{case.name}, {mode}, {dtype}: {told}; others {max((r['others'] for r in made), default=0):.2f}", flush=True)
    run.close()
    return 75 if left else 0


if __name__ == "__main__":
    sys.exit(main())
