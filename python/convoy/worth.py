"""Is a region worth it? What PyTorch would take for its operators, against what Convoy takes for its plan.

Both are seconds. An operator in PyTorch costs what its kind does on the device (rates.py, fitted to measurements):

    start + max(bytes / bandwidth, flops / rate)         relu of 1 MiB on two cores: 3 µs + 2 MiB / 100 GB/s = 24 µs

A region in Convoy costs a call and what its plan predicts, corrected for the kind of its heaviest operator: the library
assumes that every byte comes from memory, and is too optimistic about some kernels. On the GPU the host issues calls while the
device runs, and both are compared.

Predictions are inexact, so a region is taken only if it is predicted to be faster by MARGIN. Effort "measure" times both,
once for every distinct region in a process.
"""

import statistics
import threading
import time
from dataclasses import dataclass

import torch

from . import verdicts
from .rates import RATES
from .work import work_of

MARGIN = 1.25
LAUNCH = 4e-6  # seconds of the host for one more pass
ROUNDS = 5  # of both, when they are timed
MOST_REMEMBERED = 4096


@dataclass(frozen=True)
class Verdict:
    """Seconds of a region here and in PyTorch."""

    ours: float
    theirs: float
    measured: bool = False

    def taken(self):
        return self.ours <= self.theirs if self.measured else MARGIN * self.ours <= self.theirs

    def reason(self):
        if self.ours == float("inf"):
            return "an operator whose speed in PyTorch is not known"
        how = "takes" if self.measured else "is predicted to take"
        ours = f"Convoy {1e3 * self.ours:.4g} ms" + (" (the plan's prediction, corrected)" if not self.measured else "")
        return f"PyTorch {how} {1e3 * self.theirs:.4g} ms, {ours}"


# ---- predictions -------------------------------------------------------------------------------------------------


class Model:
    """The rates of a device, scaled from the machine they were fitted on to the plan's machine."""

    def __init__(self, rates, peak, bandwidth):
        self.rates = rates
        self.flops_scale, self.bytes_scale = peak / rates["peak"], bandwidth / rates["bandwidth"]

    def memory(self, nbytes, rate):
        """Bytes that fit the cache come and go at one speed, the others at another."""
        cache = self.rates["cache"]
        return (min(nbytes, cache) / rate.small + max(nbytes - cache, 0) / rate.large) / self.bytes_scale

    def eager(self, work):
        """Seconds of the device for one operator in PyTorch. Few results leave lanes idle."""
        rate = self.rate("eager", work)
        arithmetic = work.flops / (rate.flops * self.flops_scale) * (1 + rate.full / work.lanes) if work.flops else 0.0
        return rate.start + max(self.memory(work.bytes, rate), arithmetic)

    def rate(self, side, work):
        table = self.rates[side]
        return table.get(work.kind) or table["pointwise"]

    def knows(self, works):
        """A kind that was never measured is PyTorch's."""
        return all(w.kind in self.rates["convoy"] for w in works)

    def theirs(self, works):
        """(device, host) of operators in PyTorch."""
        return sum(map(self.eager, works)), sum(self.rate("eager", w).host for w in works)

    def ours(self, works, cost):
        """(device, host) of a region. cost: of its plan, which counts every byte at the memory's speed. Every operator's
        kind counts for its share of PyTorch's time."""
        times = [self.eager(w) for w in works]
        shares = [(t / sum(times), self.rate("convoy", w)) for t, w in zip(times, works)]
        heaviest = max(shares, key=lambda s: s[0])[1]
        start, factor = (sum(s * getattr(r, name) for s, r in shares) for name in ("start", "factor"))
        arithmetic = max(cost.seconds - cost.bytes / cost.bandwidth, 0.0)
        rounds = max(cost.passes, 1) if self.rates["by_pass"] else 1
        device = cost.passes * start + factor * arithmetic + rounds * self.memory(cost.bytes / rounds, heaviest)
        return device, heaviest.host and heaviest.host + LAUNCH * (cost.passes - 1)

    def verdict(self, works, cost):
        """Host and device work side by side, and which of them is waited for depends on what else there is: so the
        device has to win, and then the longer of the two counts."""
        ours, theirs = self.ours(works, cost), self.theirs(works)
        alone = Verdict(ours[0], theirs[0])
        return Verdict(max(ours), max(theirs)) if alone.taken() else alone


def rates_of(device, half):
    if device.type == "cpu":
        return RATES["cpu half" if half else "cpu"]
    return RATES["cuda half" if half else "cuda tf32" if torch.backends.cudnn.allow_tf32 else "cuda"]


def predict(region, plan, device):
    works, cost = [w for w in map(work_of, region.nodes) if w is not None], plan.cost()
    model = Model(rates_of(device, any(w.half for w in works)), cost.peak, cost.bandwidth)
    return model.verdict(works, cost) if works and model.knows(works) else Verdict(float("inf"), 0.0)


# ---- measurements ------------------------------------------------------------------------------------------------

REMEMBERED, LOCK = {}, threading.Lock()


def seconds_of(function, tensors, device):
    start = time.perf_counter()
    function(tensors)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def random_sources(runner):
    """Random tensors with the shapes and strides that a region gets, also strides that show elements more than once. The
    generator is their own, so the caller's generators do not change."""
    generator = torch.Generator(runner.device).manual_seed(1)
    found = []
    for shape, stride, dtype in runner.sources:
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
        found.append(torch.rand(reach, dtype=dtype, device=runner.device, generator=generator).as_strided(shape, stride))
    return found


def compare(runner):
    """Both, interleaved, on random numbers."""
    device, tensors = runner.device, random_sources(runner)
    ways = (runner.run, runner.program.evaluate)
    times = [[], []]
    with torch.no_grad():
        for round_ in range(ROUNDS + 1):
            for way, found in zip(ways, times):
                seconds = seconds_of(way, tensors, device)
                if round_:  # the first one prepares
                    found.append(seconds)
    return Verdict(*map(statistics.median, times), measured=True)


def measure(runner, settings):
    """What compare() found the first time that this region was met with these settings, in this process or another one."""
    key = (runner.program.dumps(), tuple(runner.sources), tuple(runner.outputs), runner.device, settings, settings.ambient(),
           torch.backends.cudnn.allow_tf32)
    with LOCK:
        if key not in REMEMBERED:
            while len(REMEMBERED) >= MOST_REMEMBERED:
                del REMEMBERED[next(iter(REMEMBERED))]
            REMEMBERED[key] = recalled(runner, verdicts.text_of(key, runner.device))
        return REMEMBERED[key]


def recalled(runner, text):
    """From disk (verdicts.py), else measured and written there."""
    times = verdicts.load(text)
    if times is not None:
        return Verdict(*times, measured=True)
    found = compare(runner)
    verdicts.store(text, found.ours, found.theirs)
    return found


def judge(region, runner, settings):
    """The verdict on a region whose plan is made; None if every region is wanted."""
    if settings.regions == "all":
        return None
    if settings.effort == "measure":
        return measure(runner, settings)
    return predict(region, runner.plan, runner.device)
