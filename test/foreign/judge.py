"""How far a result may be from PyTorch's in float64.

The reference computes in double: it may differ by the rounding of its result and by the noise of float64. Every other
device computes in float32 and is judged by how far float32 gets: by PyTorch's own float32 run first, and where that does
not excuse it, by float64 runs whose stages are made as inexact as float32 is. A place counts where all those runs agree
on what it is (a number, an infinity with its sign, NaN): where they do not, rounding or overflow decides. Where a
stage's numbers or sums may leave float32's range, only what came out as numbers counts: infinities, and NaN made of them,
depend on the order of additions. And where what is left of terms that cancel decides which it is, nothing is wrong.
"""

import math

import numpy as np
import torch

import eager

EPS32, EPS64 = 2.0**-24, 2.0**-45  # half an ulp of float32; float64's with room for long sums
LARGEST, SQUARED = float(np.finfo(np.float32).max), 1e150  # what float32 holds, what float64 can square
TINY = 2.0**-150  # half of the smallest denormal
FACTOR, ULPS = 8, 16  # times the error of those runs, and half ulps of the largest value
NORM = 512  # a norm of equal values is a rest over the root of its eps


def outputs_of(text, arrays, dtype=torch.float64, after=lambda value, terms: value):
    def source(name, shape):
        return torch.from_numpy(arrays[name]).to(dtype)

    return [o.to(torch.float64).numpy() for o in eager.run(text, source, after)]


def largest(value):
    """The largest number, without infinities."""
    return float(value.abs().nan_to_num(0, 0, 0).max()) if value.numel() else 0.0


def relative_noise(eps, seed):
    """Every value off by up to eps of itself, as if it had been rounded."""
    generator = torch.Generator().manual_seed(seed)

    def after(value, terms):
        return value * (1 + eps * (2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1))

    return after


def absolute_noise(eps, seed):
    """Off by up to eps of the stage's largest number or term: sums whose terms cancel, sums in another order."""
    generator = torch.Generator().manual_seed(seed)

    def after(value, terms):
        size = max(largest(value), math.prod(map(largest, terms)) if len(terms) == 2 else 0)
        return value + eps * size * (2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1)

    return after


def flush(eps):
    """What is left where a stage's terms cancel is 0."""

    def after(value, terms):
        if not terms:
            return value
        size = max(largest(value), math.prod(map(largest, terms)))
        return torch.where(value.abs() <= eps * size, torch.zeros_like(value), value)

    return after


def kind_of(values):
    """0 for numbers, 1 and -1 for infinities, 2 for NaN, of what float32 makes of them."""
    single = values.astype(np.float32)
    return np.where(np.isnan(single), 2, np.where(np.isinf(single), np.sign(single), 0))


def rounding(want, is_reference):
    """What the last step alone may cost: one rounding of each value, or some half ulps of the largest."""
    scale = np.abs(want[np.isfinite(want)]).max(initial=0.0)
    return TINY + (EPS32 * np.abs(want) + 1e-12 * scale if is_reference else ULPS * EPS32 * scale)


def bound(want, runs):
    """Where an output counts, and the error allowed there besides rounding."""
    kind = kind_of(want)
    counts = np.ones(want.shape, bool)
    for run in runs:
        counts &= kind_of(run) == kind
    numbers = counts & (kind == 0)
    return counts, FACTOR * max((np.abs(run - want)[numbers].max(initial=0.0) for run in runs), default=0.0)


def complaint(got, want, counts, allowed):
    """What is wrong with an output, or None."""
    if got.shape != want.shape:
        return f"shape {got.shape}, PyTorch has {want.shape}"
    kind = kind_of(want)
    bad = counts & (kind_of(got) != kind)
    if not bad.any():
        bad = counts & (kind == 0) & ~(np.abs(got.astype(np.float64) - want) <= allowed)
    if not bad.any():
        return None
    at = tuple(np.argwhere(bad)[0].tolist())
    there = np.broadcast_to(allowed, want.shape)[at]
    return f"{bad.sum()} of {bad.size} differ, first at {at}: got {got[at]:.9g}, PyTorch {want[at]:.9g} +- {there:.2g}"


class Judge:
    """PyTorch's answers for one chain and its data, and verdicts on others'."""

    def __init__(self, text, arrays):
        self.text, self.arrays, self.made = text, arrays, {}
        self.largest = 0.0
        self.wants = outputs_of(text, arrays, after=self.watch)

    def watch(self, value, terms):
        sums = math.prod(map(largest, terms)) * terms[0].numel() if terms else 0
        self.largest = max(self.largest, largest(value), sums)
        return value

    def run(self, name):
        """Outputs of one of the runs that bounds are made of, computed when first asked for."""
        if name not in self.made:
            kind, *numbers = name
            after = {"relative": relative_noise, "absolute": absolute_noise}.get(kind)
            dtype = torch.float32 if kind == "float32" else torch.float64
            self.made[name] = outputs_of(self.text, self.arrays, dtype, after(*numbers) if after else lambda v, terms: v)
        return self.made[name]

    def complaints(self, gots, is_reference, runs):
        found = []
        for i, (got, want) in enumerate(zip(gots, self.wants, strict=True)):
            counts, allowed = bound(want, [self.run(name)[i] for name in runs])
            if self.largest > (SQUARED if is_reference else LARGEST):
                counts &= np.isfinite(got) & np.isfinite(want)
            if text := complaint(got, want, counts, allowed + rounding(want, is_reference)):
                found.append(f"output {i}: {text}")
        return found

    def verdict(self, gots, is_reference):
        """What is wrong with a device's outputs: complaints, none where all is well."""
        with np.errstate(all="ignore"):
            for runs in EXCUSES[is_reference]:
                found = self.complaints(gots, is_reference, runs)
                if not found:
                    break
            return [] if found and self.is_chance(EPS64 if is_reference else EPS32) else found

    def is_chance(self, eps):
        """Whether a rest decides, in any stage, between numbers, infinities and NaN: the sign of log(x - x)'s argument."""
        rest, kinds = flush(NORM * eps), ([], [])
        for found, after in zip(kinds, (lambda value, terms: value, rest)):

            def note(value, terms, found=found, after=after):
                value = after(value, terms)
                found.append(kind_of(value.numpy()))
                return value

            outputs_of(self.text, self.arrays, after=note)
        return any((a != b).any() for a, b in zip(*kinds))


def excuses(eps, *first):
    """Runs to be judged by, from the least on: each is made only where those before it do not excuse a result."""
    relative = [*first, ("relative", eps, 1), ("relative", eps, 2)]
    return [[*first], relative, [*relative, ("absolute", eps, 3), ("absolute", eps, 4)]]


EXCUSES = {True: excuses(EPS64), False: excuses(EPS32, ("float32",))}
