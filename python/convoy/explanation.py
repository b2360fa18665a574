"""convoy.explain(): which parts of a module run where, in which passes, and what they cost."""

import contextlib
import itertools
import statistics
import time

import torch

from .module import Compiled, Dispatcher, compile_module, dispatcher_of
from .random_numbers import same_random_numbers
from .reasons import Changed, Unseen
from .state import State
from .worth import random_sources

RUNS = 5


class Explanation:
    """Printed as text; `regions` and `kept` are for programs."""

    def __init__(self, entry, device):
        self.reason, self.device = entry.reason, device
        self.regions, self.kept = [], {}
        if entry.capture is not None:
            self.kept = {n.name: (str(n.target), reason) for n, reason in entry.capture.kept.items()}
            self.regions = [describe(*pair) for pair in zip(entry.runners, entry.verdicts)]
        # Weights are kept for as long as the module lives; regions run one after the other in the same workspace.
        self.prepared = sum(region["prepared"] for region in self.regions)
        self.workspace = max((region["workspace"] for region in self.regions), default=0)

    def __str__(self):
        lines = [f"{len(self.regions)} region{'s' * (len(self.regions) != 1)} by Convoy on {self.device}"]
        if self.regions:
            lines.append(f"memory: {1e-6 * self.prepared:.4g} MB derived from parameters, a workspace of {1e-6 * self.workspace:.4g} MB "
                         "that the regions share")  # fmt: skip
        if self.reason:
            lines.append(f"the whole module stays in PyTorch: {self.reason}")
        for i, region in enumerate(self.regions, 1):
            lines += [
                "",
                f"region {i}: {region['chain']}",
                f"  {region['passes']} pass{'es' * (region['passes'] != 1)}, {1e-6 * region['bytes']:.4g} MB, "
                f"{1e-9 * region['flops']:.4g} GFLOP; predicted {region['predicted_ms']:.4g} ms, "
                f"measured {region['measured_ms']:.4g} ms, memory alone {region['floor_ms']:.4g} ms",
                f"  {1e-6 * region['prepared']:.4g} MB derived from parameters, workspace {1e-6 * region['workspace']:.4g} MB",
            ]
            if region["verdict"]:
                lines.append(f"  taken: {region['verdict'].reason()}")
            lines += ["  | " + line for line in region["plan"].splitlines()[1:]]
        if self.kept:
            lines += ["", "stays in PyTorch:"]
            lines += ["  " + line for line in grouped(self.kept)]
        return "\n".join(lines)

    __repr__ = __str__


def grouped(kept):
    """Lines: operators of one rejected region have the same reason, which is the same object, so they share a line."""
    lines = []
    for _, group in itertools.groupby(kept.items(), key=lambda item: id(item[1][1])):
        group = list(group)
        lines.append(", ".join(f"{name} ({target})" for name, (target, _) in group) + f": {group[0][1][1]}")
    return lines


def describe(runner, verdict):
    cost = runner.plan.cost()
    runner.plan.measure()
    return {
        "chain": str(runner.graph),
        "plan": str(runner.plan),
        "passes": cost.passes,
        "bytes": cost.bytes,
        "flops": cost.flops,
        "prepared": runner.plan.prepared,
        "workspace": runner.plan.scratch,
        "predicted_ms": 1e3 * cost.seconds,
        "floor_ms": 1e3 * cost.floor,
        "measured_ms": measured_ms(runner),
        "verdict": verdict,
    }


def measured_ms(runner):
    """On random numbers: a region's real inputs exist only inside the model."""
    tensors = random_sources(runner)
    cuda = runner.device.type == "cuda"
    times = []
    with torch.no_grad():
        for i in range(RUNS + 1):
            start = time.perf_counter()
            runner.run(tensors)
            if cuda:
                torch.cuda.synchronize(runner.device)
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


@contextlib.contextmanager
def unharmed(module):
    """Restores everything that a call changes (batch statistics, assignments of the forward, random numbers)."""
    try:
        state = State(module)
    except Unseen:
        state = State([])
    changing = [t for t in state.tensors.values() if not isinstance(t, torch.nn.Parameter)]
    copies = [t.clone() for t in changing]
    try:
        with same_random_numbers(state.generators):
            yield
    except Changed:  # the forward draws random numbers
        pass
    finally:
        state.restore()
        for tensor, copy in zip(changing, copies):
            if not torch.equal(tensor, copy):
                tensor.copy_(copy)


@contextlib.contextmanager
def named_in_errors():
    """The module's own error about inputs that it does not take, with the name of the function that called it."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        if type(error) not in (TypeError, ValueError, RuntimeError):
            raise
        raise type(error)(f"convoy.explain: the module does not take these inputs: {error}") from error


def explain_module(module, inputs, keywords):
    """The module may be compiled or not; if not, the default settings apply. The module does not change."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"convoy.explain takes an nn.Module and its inputs, not {type(module).__name__}")
    settings = dispatcher_of(module).settings if isinstance(module, Compiled) else None
    compiled = module if settings else compile_module(module)
    probe = Dispatcher(settings or dispatcher_of(compiled).settings)  # separate plans, so the timing leaves no trace
    with torch.no_grad(), unharmed(module), named_in_errors():
        probe.call(compiled, type(compiled)._original.forward, inputs, keywords)
    entry = list(probe.entries.values())[-1] if probe.entries else None
    if entry is None:
        raise ValueError("convoy.explain: an argument of this call cannot be hashed, so the call cannot be captured")
    tensors = [t for t in torch.utils._pytree.tree_leaves((inputs, keywords)) if isinstance(t, torch.Tensor)]
    return Explanation(entry, tensors[0].device if tensors else "cpu")
