"""Chains drawn at random: a convolution of any size that Convoy promises to be good at, two to five operators after it.

`draw(seed, count)` gives the same chains for the same seed everywhere, and a smaller count gives the first of them. What
Convoy can fuse has no part in it; a convolution is drawn again only where it is too large for a benchmark (`sensible()`).
"""

import math
import random
from dataclasses import dataclass

INPUTS = (3, 8, 16, 24, 64)  # channels
OUTPUTS = (16, 256)
EXTENTS = (7, 512)
BATCHES = (1, 256)
KERNELS = (1, 3, 5, 7)
STRIDES = (1, 2)
PADDINGS = (0, 1)
TAIL = (2, 5)  # operators after the convolution

MOST_VALUES = 1 << 28  # of a tensor: 1 GiB
MOST_WORK = 1e12  # operations of a convolution: some 20 ms in single precision
FEWEST_NORMED = 8  # values that a norm is taken over; of one or two nothing but their signs is left

ACTIVATIONS = ("relu", "relu", "silu", "silu", "gelu", "gelu", "tanh", "sigmoid", "hardswish", "mish", "elu", "softplus",
               "leaky_relu(0.1)", "clamp(0,1)", "clamp(-1,1)")
REDUCTIONS = ("logsumexp(1,keepdim=True)", "logsumexp(1)", "max(1)", "max(1,keepdim=True)", "min(1)", "mean(1)",
              "mean(1,keepdim=True)", "sum(1,keepdim=True)", "softmax(1)")
# How often: a norm in four chains of five, most of them in groups; pooling and reductions in three of ten.
NORM, POOL, REDUCE = 0.8, 0.3, 0.3
POINTWISE = {"activation": 11, "scale": 3, "bias": 3, "residual": 3}
NORMS = {"groups": 12, "instance": 3, "layer": 3, "batch": 2}


@dataclass
class Conv:
    batch: int
    inputs: int
    height: int
    width: int
    outputs: int
    kernel: int
    stride: int
    padding: int

    def space(self):
        return [(e + 2 * self.padding - self.kernel) // self.stride + 1 for e in (self.height, self.width)]

    def head(self):
        return f"x[{self.batch},{self.inputs},{self.height},{self.width}]"

    def text(self):
        words = [str(self.outputs), str(self.kernel)]
        words += [f"stride={self.stride}"] * (self.stride != 1) + [f"padding={self.padding}"] * (self.padding != 0)
        return f"conv2d({','.join(words)})"


def log_uniform(rng, bounds):
    low, high = bounds
    return round(low * (high / low) ** rng.random())


def weighted(rng, table):
    return rng.choices(list(table), list(table.values()))[0]


def convolution(rng):
    """Extents and channels log-uniform; half of the images square, three of four output channels multiples of 8."""
    height, outputs = log_uniform(rng, EXTENTS), log_uniform(rng, OUTPUTS)
    width = height if rng.random() < 0.5 else log_uniform(rng, EXTENTS)
    outputs = round(outputs / 8) * 8 if rng.random() < 0.75 else outputs
    return Conv(log_uniform(rng, BATCHES), rng.choice(INPUTS), height, width, outputs, rng.choice(KERNELS),
                rng.choice(STRIDES), rng.choice(PADDINGS))


def sensible(conv):
    p, q = conv.space()
    out = conv.batch * conv.outputs * p * q
    work = 2 * out * conv.inputs * conv.kernel**2
    return max(out, conv.batch * conv.inputs * conv.height * conv.width) <= MOST_VALUES and work <= MOST_WORK


class Tail:
    """The operators after a convolution, one after the other, and the extents of a sample on the way."""

    def __init__(self, rng, conv):
        self.rng, self.channels, self.space, self.before = rng, conv.outputs, conv.space(), conv.space()
        self.stages, self.reduced = [], False

    def kinds(self):
        """What comes, in order: a reduction last, or with an activation after it."""
        rng, count = self.rng, self.rng.randint(*TAIL)
        chosen = ["norm"] * (rng.random() < NORM) + ["pool"] * (rng.random() < POOL and min(self.space) >= 2)
        reduction = ["reduce"] * (rng.random() < REDUCE)
        chosen = chosen[: count - len(reduction)]
        chosen += ["pointwise"] * (count - len(reduction) - len(chosen))
        rng.shuffle(chosen)
        after = bool(reduction) and chosen[-1] == "pointwise" and rng.random() < 0.5
        return chosen[:-1] + reduction + chosen[-1:] if after else chosen + reduction

    def norm(self):
        divisors = [g for g in range(1, self.channels + 1) if self.channels % g == 0]
        kind = weighted(self.rng, NORMS)
        groups = {"groups": self.rng.choice(divisors), "instance": self.channels, "layer": 1, "batch": 0}[kind]
        most = self.channels * math.prod(self.space) // FEWEST_NORMED
        groups = max((g for g in divisors if g <= min(groups, most)), default=0)
        return f"group_norm({groups})" if groups else "batch_norm"

    def pool(self):
        size = self.rng.choice([n for n in (2, 2, 3, 4) if n <= min(self.space)])
        self.space = [e // size for e in self.space]
        return f"{self.rng.choice(('max_pool2d', 'max_pool2d', 'avg_pool2d'))}({size})"

    def reduce(self):
        self.reduced = True
        return self.rng.choice(REDUCTIONS)

    def pointwise(self):
        """Scale, bias and residual at most once each, and no activation twice in a row."""
        once = {"scale": f"mul(scale[{self.channels},1,1])", "bias": f"add(bias[{self.channels},1,1])",
                "residual": "add(@c)"}
        possible = {text for text in once.values() if text not in self.stages and not self.reduced}
        if not self.stages or self.space != self.before:
            possible.discard("add(@c)")
        text = once.get(weighted(self.rng, POINTWISE))
        others = [a for a in ACTIVATIONS if a not in self.stages[-1:]]
        return text if text in possible else self.rng.choice(others)

    def draw(self):
        for kind in self.kinds():
            self.stages.append(getattr(self, kind)())
        return self.stages


def chain(rng):
    conv = convolution(rng)
    while not sensible(conv):
        conv = convolution(rng)
    stages = Tail(rng, conv).draw()
    return " | ".join([conv.head(), conv.text() + " @c" * ("add(@c)" in stages), *stages])


def draw(seed, count):
    rng = random.Random(seed)
    return [chain(rng) for _ in range(count)]
