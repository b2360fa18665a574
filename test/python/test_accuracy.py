"""How much of the result rounding takes, as a multiple of what eager PyTorch loses: the contract of doc/DESIGN.md, Numerics.

Errors are distances from PyTorch in float64. Direct forms and products lose at most twice what eager loses, the largest
error and the root mean square both, for sums of up to 16,384 terms; Winograd forms at most 5 times the largest and 3
times the root mean square."""

import numpy as np
import pytest
import torch

from chains import evaluate
from compare import random_tensors
from library import Graph, run

DIRECT, WINOGRAD = (2, 2), (5, 3)  # times eager's largest error, times its root mean square

# 3x3 with stride 1: what Winograd's forms are chosen for
SQUARES = [f"x[{n},{c},24,24] | conv2d(64,3,padding=1)"
           for n, c in ((8, 1), (8, 2), (8, 3), (8, 5), (4, 8), (4, 16), (2, 32), (1, 64), (1, 128), (1, 256), (1, 512))]
SQUARES += ["x[1,512,14,14] | conv2d(96,3,padding=1)", "x[1,64,6,12,12] | conv3d(64,3,padding=1)",
            "x[2,3,6,12,12] | conv3d(64,3,padding=1)"]
SQUARES += [f"x[{n},{c},{h},{h}] | conv2d(64,3,padding={d},dilation={d})"
            for n, c, h, d in ((4, 8, 25, 2), (1, 128, 28, 2), (1, 256, 33, 6), (1, 256, 33, 12), (2, 16, 20, 3))]
OTHERS = [
    "x[1,1820,10,10] | conv2d(96,3,stride=1,groups=1,dilation=2)",  # 16,380 terms
    "x[1,512,256] | conv1d(64,9,padding=4)",
    "x[1,2,2048] | conv1d(64,700)",  # chains within a channel
    "x[1,64,24,24] | conv2d(64,7,padding=3)",
    "x[2,64,24,24] | conv2d(64,5,padding=2)",
    "x[1,256,32,32] | conv2d(64,3,padding=1,stride=2)",
    "x[1,128,32,32] | conv2d(64,4,padding=1,stride=2)",
    "x[1,96,33,33] | conv2d(64,5,padding=12,dilation=6)",
    "x[1,3,112,112] | conv2d(64,7,padding=3,stride=2)",
    "x[1,48,64,64] | conv2d(96,4,stride=4)",
    "x[1,512,16,16] | conv2d(64,3,padding=1,groups=2)",
    "x[1,64,24,24] | conv2d(64,7,padding=3,groups=64)",
    "x[1,96,40,40] | conv2d(96,5,padding=2,stride=2,groups=96)",
    "x[1,64,40,40] | conv2d(64,15,padding=7,groups=64)",  # 225 terms, one chain
    "x[1,64,40,40] | conv2d(64,17,padding=8,groups=64)",  # 289 terms
    "x[1,2048,12,12] | conv2d(128,1)",
    "x[1,2048,12,12] | conv2d(128,1,stride=2)",
    "x[64,16384] | linear(256)",
    "x[1,16384] | linear(512)",
    "x[300,1000] | linear(64)",
    "x[4,64,2048] | matmul(w[2048,64])",
    "x[1,512,12,12] | conv_transpose2d(64,4,stride=2,padding=1)",
    "x[1,256,12,12] | conv_transpose2d(64,3,padding=1)",
]
FEW = [SQUARES[i] for i in (3, 4, 8, 14)] + [OTHERS[i] for i in (1, 2, 6, 12, 18)]  # for instruction sets beside the best one


def uniform(normals):
    """The same tensors with numbers from 0 to 1: sums grow with the number of terms."""
    return {k: np.random.default_rng(v.size).random(v.shape, np.float32) for k, v in normals.items()}


def errors(text, make, devices):
    """Of eager PyTorch, then of each device: the largest error and the root mean square."""
    graph = Graph(text)
    arrays = make(random_tensors(graph))

    def result(dtype):
        return evaluate(text, {k: torch.from_numpy(v).to(dtype) for k, v in arrays.items()})[0][0].double().numpy()

    want = result(torch.float64)
    found = [result(torch.float32)] + [run(graph, arrays, device)[0] for device in devices]
    return [(np.abs(f - want).max(), np.sqrt(np.square(f - want).mean())) for f in found]


def assert_within(text, make, factors):
    """factors: by device."""
    eager, *ours = errors(text, make, factors)
    for (device, most), error in zip(factors.items(), ours):
        ratios = [e / own for e, own in zip(error, eager)]
        assert all(r <= m for r, m in zip(ratios, most)), (
            f"{text} on {device}: {ratios[0]:.2f} times eager's largest error, {ratios[1]:.2f} times its root mean square"
        )


DATA = pytest.mark.parametrize("make", [dict, uniform], ids=["normal", "uniform"])


@DATA
@pytest.mark.parametrize("text", SQUARES)
def test_squares(text, make):
    assert_within(text, make, {"cpu": WINOGRAD, "cpu:winograd=2": DIRECT})


@DATA
@pytest.mark.parametrize("text", OTHERS)
def test_others(text, make):
    assert_within(text, make, {"cpu": DIRECT})


@DATA
@pytest.mark.parametrize("isa", ["portable", "avx2"])
@pytest.mark.parametrize("text", FEW)
def test_instruction_sets(text, make, isa, monkeypatch):
    monkeypatch.setenv("CVY_ISA", isa)
    assert_within(text, make, {"cpu": WINOGRAD if text in SQUARES else DIRECT, "cpu:winograd=2": DIRECT})


@pytest.mark.parametrize("seed", range(1, 9))
def test_any_form(seed):
    """The dice choose among all forms that the contract allows."""
    for text in SQUARES[1:6] + SQUARES[14:]:
        assert_within(text, dict, {f"cpu:seed={seed}": WINOGRAD})
    for text in OTHERS[3:8]:
        assert_within(text, dict, {f"cpu:seed={seed}": DIRECT})
