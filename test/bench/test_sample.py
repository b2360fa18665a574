"""Chains drawn at random: the same ones for a seed, everything that was promised among them, and each one a chain."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "suites"))
try:
    import chains
    import peers
    import sample
finally:
    sys.path.pop(0)

MANY = sample.draw(7, 1500)


def numbers(pattern):
    return [int(m[1]) for text in MANY for m in [re.search(pattern, text)] if m]


def test_a_seed_gives_the_same_chains():
    assert sample.draw(1, 50) == sample.draw(1, 50) and sample.draw(1, 20) == sample.draw(1, 50)[:20]
    assert sample.draw(1, 50) != sample.draw(2, 50) and len(set(sample.draw(1, 50))) == 50


def test_every_size_is_drawn_and_no_other():
    assert set(numbers(r"x\[\d+,(\d+)")) == {3, 8, 16, 24, 64}
    assert set(numbers(r"conv2d\(\d+,(\d)")) == {1, 3, 5, 7}
    assert {bool(n) for n in map(re.compile("stride=2").search, MANY)} == {True, False}
    assert {bool(n) for n in map(re.compile("padding=1").search, MANY)} == {True, False}
    for pattern, (low, high) in {r"x\[(\d+)": (1, 256), r"x\[\d+,\d+,(\d+)": (7, 512), r"x\[\d+,\d+,\d+,(\d+)": (7, 512),
                                 r"conv2d\((\d+)": (16, 256)}.items():
        found = numbers(pattern)
        assert low <= min(found) < 2 * low and high / 2 < max(found) <= high, pattern
        assert any(n % 8 for n in found)


def test_every_kind_of_tail_is_drawn():
    lengths = [text.count(" | ") for text in MANY]
    assert set(lengths) == {3, 4, 5, 6}
    for word in [*{a.split("(")[0] for a in sample.ACTIVATIONS}, *{r.split("(")[0] for r in sample.REDUCTIONS}, "group_norm",
                 "batch_norm", "max_pool2d", "avg_pool2d", "mul(scale", "add(bias", "add(@c)"]:
        assert any(word in text for text in MANY), word
    normed = [(int(m[1]), int(m[2])) for text in MANY for m in [re.search(r"conv2d\((\d+).*group_norm\((\d+)", text)] if m]
    assert all(channels % groups == 0 for channels, groups in normed) and 0.6 < len(normed) / len(MANY) < 0.85
    assert any(g == 1 for _, g in normed) and any(g == c for c, g in normed) and any(1 < g < c for c, g in normed)
    assert any("norm" not in text for text in MANY)


@pytest.mark.parametrize("seed", range(3))
def test_convoy_and_pytorch_agree_on_what_a_chain_is(seed):
    """One sample of each chain, its image cut down, on the CPU: the same extents, and nearly the same numbers."""
    import torch

    for text in sample.draw(seed, 12):
        n, c, h, w = map(int, re.match(r"x\[(\d+),(\d+),(\d+),(\d+)", text).groups())
        text = text.replace(f"x[{n},{c},{h},{w}]", f"x[1,{c},{min(h, 33)},{min(w, 35)}]")
        chain = chains.parse(text)
        inputs, params = chains.data_of(chain, 1)
        want = chains.torch_module(chain, params, torch.float64)(torch.from_numpy(inputs[0]).double()).numpy()
        run = peers.ConvoyPeer().prepare(chain, inputs, params, 1)
        got = run(0)
        run.close()
        assert got.shape == want.shape, text
        assert abs(got - want).max() <= 1e-4 * max(1.0, abs(want).max()), text
