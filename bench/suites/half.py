"""Blocks A, B and C in half precision on a GPU: Convoy and PyTorch, both layouts, in one process.

    python bench/suites/half.py [--blocks abc] [--dtype bf16 fp16] [--peers eager compile autotune] [--rounds 30]

Rows: PyTorch eager, torch.compile (default, max-autotune), convoy.compile, and the library's plan alone with tensors that lie as
the row says, results too (PyTorch's norms give contiguous results on a GPU, so a module does). `autocast`: float32 module
and input. A time is the median of single calls between events, the L2 overwritten before each, all rows of a block in turn. An
error is the largest of some samples against float64, over the largest result.
"""

import argparse
import ctypes as C
import importlib
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]
os.environ.setdefault("CONVOY_REGIONS", "all")

import torch

import convoy
import convoy.binding as b
from convoy.engine import Graph, Plan, check, lib

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
CHAINS = {
    "a": "x[128,8,128,128]{t} | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]{t}) | max_pool2d(4) | clamp(0,1)",
    "b": "x[128,8,128,128]{t} | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "c": "x[128,8,256,256]{t} | conv2d(32,3) | add(bias[32,1,1]{t}) | mul(scale[32,1,1]{t}) | sigmoid | group_norm(8)",
}
PARAMETERS = {  # in the chain's order
    "a": ("conv.weight", "conv.bias", "group_norm.weight", "group_norm.bias", "scale"),
    "b": ("conv.weight", "conv.bias", "group_norm.weight", "group_norm.bias"),
    "c": ("conv.weight", "conv.bias", "bias", "scale", "group_norm.weight", "group_norm.bias"),
}
CHECKED = 4  # samples


class Alone:
    """A plan of the chain, on tensors that lie as they are given; prepared parameters are kept."""

    def __init__(self, block, word, module, x, layout):
        graph = Graph.__new__(Graph)
        graph.handle, graph.outputs = C.c_void_p(), []
        check(lib.cvy_graph_parse(CHAINS[block].format(t=f":{word}").encode(), C.byref(graph.handle)))
        self.plan = Plan(graph, "cuda")
        tensors, names = [x], dict(module.named_parameters())
        tensors += [names[n].detach().contiguous() for n in PARAMETERS[block]]
        with torch.no_grad():
            shape = module(x[:1]).shape
        self.y = torch.empty(x.shape[0], *shape[1:], dtype=x.dtype, device=x.device).to(memory_format=layout)
        self.tensors = [*tensors, self.y]
        strides = [None if t.is_contiguous() else (C.c_int64 * t.dim())(*t.stride()) for t in self.tensors]
        self.buffers = (b.cvy_buffer * len(self.tensors))(*(b.cvy_buffer(t.data_ptr(), s) for t, s in zip(self.tensors, strides)))
        self.strides, self.work = strides, torch.empty(self.plan.workspace + 16, dtype=torch.uint8, device=x.device)
        self.run(0)

    def run(self, flags):
        stream = torch.cuda.current_stream().cuda_stream
        check(lib.cvy_plan_run(self.plan.handle, self.buffers, len(self.tensors), self.work.data_ptr(), self.plan.workspace, flags, stream))

    def __call__(self, x):
        self.run(b.CVY_KEEP_PREPARED)
        return self.y


def rows_of(block, word, peers):
    """(name, function, input, layout, autocast) of every row, and the float64 result of the first samples."""
    example, dtype = importlib.import_module(f"examples.block_{block}"), DTYPES[word]
    torch.manual_seed(0)
    wide = example.Model(*example.get_init_inputs()).eval().cuda()
    x32 = example.get_inputs()[0].cuda()
    x16, half = x32.to(dtype), example.Model(*example.get_init_inputs()).eval().cuda().to(dtype)
    half.load_state_dict(wide.state_dict())
    truth = {False: example.Model(*example.get_init_inputs()).double().cuda(), True: wide}
    truth[False].load_state_dict({k: v.double() for k, v in half.state_dict().items()})
    want = {False: truth[False](x16[:CHECKED].double())}
    truth[True] = example.Model(*example.get_init_inputs()).double().cuda()
    truth[True].load_state_dict({k: v.double() for k, v in wide.state_dict().items()})
    want[True] = truth[True](x32[:CHECKED].double())
    found = []
    for name, layout in LAYOUTS.items():
        x, y = (t.contiguous(memory_format=layout) for t in (x16, x32))
        made = {"eager": lambda m: m, "compile": torch.compile, "autotune": lambda m: torch.compile(m, mode="max-autotune")}
        for peer in peers:
            torch._dynamo.reset()
            found.append((f"torch {peer} {name}", made[peer](half), x, False))
        found.append((f"convoy.compile {name}", convoy.compile(half), x, False))
        found.append((f"convoy {name} in and out", Alone(block, word, half, x, layout), x, False))
        if "eager" in peers:
            found.append((f"torch eager autocast {name}", wide, y, True))
        found.append((f"convoy.compile autocast {name}", convoy.compile(wide), y, True))
    return found, want, dtype


def measure(block, word, options):
    rows, want, dtype = rows_of(block, word, options.peers)
    flush, times, errors = torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), [[] for _ in rows], []
    for name, call, x, cast in rows:
        with torch.autocast("cuda", dtype=dtype, enabled=cast):
            for _ in range(3):
                y = call(x)
        got = y[:CHECKED].double()
        errors.append(float((got - want[cast]).abs().max() / want[cast].abs().max()))
    for _ in range(options.rounds):
        for (name, call, x, cast), found in zip(rows, times):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.zero_()
            with torch.autocast("cuda", dtype=dtype, enabled=cast):
                torch.cuda._sleep(200_000)  # cycles, while the host issues the call
                first.record()
                call(x)
                last.record()
            torch.cuda.synchronize()
            found.append(first.elapsed_time(last))
    for (name, *_), found, error in zip(rows, times, errors):
        print(f"| {block.upper()} {word} | {name} | {statistics.median(found):.4f} | {error:.1e} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--blocks", default="abc")
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--peers", nargs="*", default=["eager", "compile", "autotune"], choices=("eager", "compile", "autotune"))
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}\n\n| block | row | ms | error |\n|---|---|---|---|", flush=True)
    with torch.no_grad():
        for word in options.dtype:
            for block in options.blocks:
                measure(block, word, options)


if __name__ == "__main__":
    main()
