"""Data for a chain, the float64 truth of it by PyTorch, and how far a device may be from that."""

import zlib

import numpy as np
import torch

from chains import evaluate
from library import Graph, run

EPS = 2.0**-24  # half an ulp of float32 at 1: what rounding the result alone may cost
TINY = 2.0**-150  # half of the smallest denormal


def random_tensors(graph, seed=0):
    """Normal float32 data, the same for a tensor's name and shape every time; variances are positive."""
    made = {}
    for spec in graph.sources:
        rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode()), *spec.shape])
        data = rng.standard_normal(spec.shape).astype(np.float32)
        made[spec.name] = np.abs(data) + np.float32(0.1) if spec.name.endswith("running_var") else data
    return made


def integer_tensors(graph, seed=0):
    """Small whole numbers: sums and products of them are exact, and ties and zeros happen."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-3, 4, t.shape).astype(np.float32) for t in graph.sources}


def truth(text, arrays, dtype=torch.float64):
    """PyTorch's outputs as float64 arrays; fails if libconvoy has a tensor PyTorch did not ask for."""
    outputs, used = evaluate(text, {k: torch.from_numpy(np.array(v)).to(dtype) for k, v in arrays.items()})
    assert used == set(arrays), f"tensors used by one side only: {used ^ set(arrays)}"
    return [o.detach().to(torch.float64).numpy() for o in outputs]


def allowed_errors(device, text, arrays, wants, floor=0.0):
    """Per output, how far each element may be from PyTorch's in float64; inf if it does not count.

    The reference may differ by the rounding of its result and by float64 noise. Other devices compute in float32 and
    are judged by PyTorch doing the same: eight times its error, and some ulps of the largest value. Where PyTorch
    itself overflows in float32 nothing is asked. `floor` is the least size of values that count, for chains whose
    results may cancel to nothing."""
    scales = [max(np.abs(w[np.isfinite(w)]).max(initial=0.0), floor) for w in wants]
    if is_reference(device):
        return [EPS * np.abs(w) + 1e-12 * s + TINY for w, s in zip(wants, scales)]
    allowed = []
    with np.errstate(over="ignore", invalid="ignore"):
        for single, want, scale in zip(truth(text, arrays, torch.float32), wants, scales):
            both = np.isfinite(single) & np.isfinite(want)
            error = np.abs(single - want)[both].max(initial=0.0)
            overflow = ~np.isfinite(single) & np.isfinite(want)
            allowed.append(np.where(overflow, np.inf, 8 * error + 16 * EPS * scale + TINY))
    return allowed


def is_reference(device):
    return device.split(":")[0] == "ref"


def assert_agrees(got, want, allowed, signed_zeros=False):
    assert got.shape == want.shape
    counts = np.broadcast_to(np.isfinite(allowed), want.shape) | ~np.isfinite(want)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(np.float32)
        np.testing.assert_array_equal(np.isnan(got) & counts, np.isnan(rounded) & counts, "NaN at other places")
        infinite = np.isinf(rounded) & counts
        np.testing.assert_array_equal(got[infinite], rounded[infinite], "infinities")
        finite = np.isfinite(rounded) & counts
        error = np.abs(got.astype(np.float64) - want)
        bad = finite & ~(error <= allowed)
    assert not bad.any(), (
        f"{bad.sum()} of {bad.size} differ, first at {tuple(np.argwhere(bad)[0].tolist())}: "
        f"got {got[bad][0]}, PyTorch {want[bad][0]}, largest error {error[finite].max():.3g}, "
        f"allowed there {np.broadcast_to(allowed, want.shape)[bad][0]:.3g}"
    )
    if signed_zeros:
        zero = rounded == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(rounded[zero]), "signs of zeros")


def check_arrays(text, graph, arrays, device, floor=0.0, **options):
    """Runs a graph on a device and compares all its outputs with PyTorch."""
    gots, wants = run(graph, arrays, device, **options), truth(text, arrays)
    assert [t.shape for t in graph.outputs] == [w.shape for w in wants]
    for got, want, allowed in zip(gots, wants, allowed_errors(device, text, arrays, wants, floor)):
        assert_agrees(got, want, allowed)


def check_chain(text, device, seed=0, **options):
    """The same on random data."""
    graph = Graph(text)
    check_arrays(text, graph, random_tensors(graph, seed), device, **options)
