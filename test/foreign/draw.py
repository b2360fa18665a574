"""Chains drawn operator by operator from what PyTorch's documentation says each takes.

Nothing here knows the library: arguments come from ranges that are wider than what is legal, PyTorch runs every stage
on zeros as soon as it is written, and what it refuses is drawn again. Drawing leans towards the odd: extents
of 1, groups between 1 and C, even filters under padding='same', dilations wider than the image, strides wider than the
filter, broadcasts in both directions, values that are read again far away.
"""

import itertools
import math
import random

import torch

from eager import Eager

MOST_ELEMENTS, MOST_PRODUCTS, MOST_RANK = 20_000, 3_000_000, 6
REFUSED = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)


class Mood:
    """What a chain is likely to be made of: how many stages, which extents, and families that come up more often."""

    def __init__(self, weight, steps=(1, 8), ranks=(2, 3, 4, 4, 4, 5), batch=(1, 2, 3, 4, 5),
                 extents=(1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17), more=()):  # fmt: skip
        self.weight, self.steps, self.ranks, self.batch, self.extents = weight, steps, ranks, batch, extents
        self.more = dict(more)


MOODS = [
    Mood(6),
    Mood(3, steps=(12, 20), extents=(1, 2, 3, 4, 5, 6, 8)),
    Mood(2, extents=(1, 1, 1, 1, 2, 3), steps=(2, 9)),
    Mood(3, ranks=(2,), extents=(1, 2, 3, 4, 6, 8, 12, 16, 24, 33, 64), more={"product": 3}),
    Mood(4, more={"norm": 3, "reduction": 3, "softmax": 3, "residual": 4}, steps=(3, 10)),
    Mood(2, ranks=(2, 3, 4), extents=(3, 4, 4, 4, 5), batch=(3, 4, 4, 5), more={"product": 8}),
    Mood(2, ranks=(3, 4, 5), more={"pool": 6}),
    Mood(1, batch=(0,), steps=(1, 6)),
    Mood(1, extents=(0, 1, 2, 3, 4), steps=(1, 6)),
    Mood(3, ranks=(3, 4, 4), batch=(1, 2), extents=(8, 15, 16, 17, 20, 24, 31, 32, 33, 48), more={"convolution": 4, "norm": 2}),
]  # fmt: skip


class Drawing:
    """One chain while it grows."""

    def __init__(self, seed):
        self.r = random.Random(f"convoy foreign {seed}")
        self.mood = self.r.choices(MOODS, [m.weight for m in MOODS])[0]
        self.inputs, self.stages, self.shapes = [], [], {}
        self.eager = Eager(lambda name, shape: torch.zeros(shape))
        rank = self.r.choice(self.mood.ranks)
        self.flowing = self.new_input([self.r.choice(self.mood.batch), *(self.extent() for _ in range(rank - 1))])

    # ---- pieces ----

    def new_input(self, shape):
        while math.prod(shape) > MOST_ELEMENTS // 4:
            shape[self.r.randrange(len(shape))] = self.r.choice((1, 2, 3))
        name = "xyzuvw"[len(self.inputs)]
        self.inputs.append(f"{name}{brackets(shape)}")
        self.shapes[name] = tuple(shape)
        return self.eager.declare(name, tuple(shape))

    def extent(self):
        return self.r.choice(self.mood.extents)

    def chance(self, p):
        return self.r.random() < p

    def pick(self, *choices):
        return self.r.choice(choices)

    def divisor(self, n):
        """1, n, or most often something between."""
        found = [d for d in range(1, n + 1) if n % d == 0] or [1]
        return self.r.choice([1, *found, *found[1:-1], n or 1])

    def per_axis(self, rank, least, most):
        """A number for all axes, or one for each."""
        if self.chance(0.6):
            return self.r.randint(least, most)
        return tuple(self.r.randint(least, most) for _ in range(rank))

    def broadcasting(self, shape):
        """Extents that broadcast with a shape: fewer dimensions, ones, wider where it has ones, more in front."""
        shape = list(shape)
        if self.chance(0.5):
            shape = shape[self.r.randint(0, len(shape)) :]
        shape = [1 if self.chance(0.3) else self.extent() if n == 1 and self.chance(0.2) else n for n in shape]
        return [self.extent(), *shape] if len(shape) < 5 and self.chance(0.08) else shape

    # ---- growing ----

    def step(self):
        """One stage, drawn until PyTorch takes it."""
        for _ in range(40):
            row = self.r.choices(ROWS, [r[1] * self.mood.more.get(r[2], 1) for r in ROWS])[0]
            words = row[3](self, tuple(self.flowing.shape))
            if words is None:
                continue
            name = f"v{len(self.stages)}"
            stage = f"{row[0](self) if callable(row[0]) else row[0]}{f'({words})' if words else ''} @{name}"
            before = dict(self.eager.values)
            try:
                value = self.eager.stage(stage, self.flowing)
            except REFUSED:
                self.eager.values = before
                continue
            if value.dim() > MOST_RANK or value.numel() > MOST_ELEMENTS or self.products(before, value) > MOST_PRODUCTS:
                self.eager.values = before
                continue
            self.stages.append(stage)
            self.shapes[name], self.flowing = tuple(value.shape), value
            return

    def products(self, before, value):
        made = [v for k, v in self.eager.values.items() if k not in before and k.endswith(".weight")]
        return value.numel() * max((math.prod(w.shape[1:]) for w in made), default=1)

    def chain(self):
        steps = self.r.randint(*self.mood.steps)
        while steps > 0:
            self.step()
            steps -= 1
            if self.chance(0.04):  # go on from an earlier value
                name = self.r.choice(list(self.shapes))
                self.stages.append(f"@{name}")
                self.flowing = self.eager.values[name]
                steps = max(steps, 1)
        made = [name for name in self.shapes if name.startswith("v")]
        if self.chance(0.2) and made:
            outputs = self.r.sample(made, min(len(made), self.r.randint(1, 3)))
            self.stages.append(f"output({', '.join(f'@{name}' for name in outputs)})")
        return " | ".join([", ".join(self.inputs), *self.stages])


def draw(seed):
    """Chain number `seed`: the same text every time."""
    for attempt in itertools.count():
        drawing = Drawing(f"{seed} {attempt}")
        text = drawing.chain()
        if any(not s.startswith(("@", "output")) for s in drawing.stages):
            return text


# ---- how arguments are written -----------------------------------------------------------------------------------------


def brackets(shape):
    return f"[{','.join(map(str, shape))}]"


def tuple_of(numbers):
    return f"({','.join(map(str, numbers))})" if len(numbers) != 1 else f"({numbers[0]},)"


def words_of(*plain, **named):
    """Arguments as text; those that are None are left out."""
    words = [written(p) for p in plain] + [f"{k}={written(v)}" for k, v in named.items() if v is not None]
    return ",".join(words)


def written(value):
    if isinstance(value, str):
        return f"'{value}'"
    return tuple_of(value) if isinstance(value, tuple) else repr(value)


def maybe(d, p, value):
    return value if d.chance(p) else None


# ---- the operators: argument ranges after torch.nn.functional's signatures ----------------------------------------------


def convolution(rank):
    def arguments(d, shape):
        if len(shape) != rank + 2 and not (len(shape) == rank + 1 and d.chance(0.15)):
            return None
        channels = shape[-rank - 1]
        groups = d.divisor(channels) if d.chance(0.6) else 1
        out = groups * d.pick(1, 1, 2, 3, 4, max(1, d.extent() // groups))
        kernel = d.per_axis(rank, 1, d.pick(1, 2, 3, 4, 5, 7))
        stride = maybe(d, 0.4, d.per_axis(rank, 1, d.pick(2, 3, 6)))
        padding = maybe(d, 0.7, d.per_axis(rank, 0, d.pick(1, 2, 3, 6)))
        if d.chance(0.2):
            stride, padding = None, d.pick("same", "same", "valid")
        dilation = maybe(d, 0.3, d.per_axis(rank, 1, d.pick(2, 3, 9)))
        return words_of(out, kernel, stride=stride, padding=padding, dilation=dilation,
                        groups=groups if groups != 1 else None, bias=maybe(d, 0.3, False))  # fmt: skip

    return arguments


def transposed(rank):
    def arguments(d, shape):
        if len(shape) != rank + 2 and not (len(shape) == rank + 1 and d.chance(0.15)):
            return None
        groups = d.divisor(shape[-rank - 1]) if d.chance(0.5) else 1
        out = groups * d.pick(1, 1, 2, 3, max(1, d.extent() // groups))
        return words_of(out, d.per_axis(rank, 1, d.pick(1, 2, 3, 5)), stride=maybe(d, 0.6, d.per_axis(rank, 1, d.pick(2, 3, 5))),
                        padding=maybe(d, 0.5, d.per_axis(rank, 0, 2)), output_padding=maybe(d, 0.3, d.per_axis(rank, 0, 2)),
                        groups=groups if groups != 1 else None, dilation=maybe(d, 0.3, d.per_axis(rank, 1, 3)),
                        bias=maybe(d, 0.3, False))  # fmt: skip

    return arguments


def linear(d, shape):
    if not shape:
        return None
    given = [n for n, v in d.eager.values.items() if v.dim() == 2 and v.shape[1] == shape[-1] and v.shape[0]]
    if given and d.chance(0.2):  # a parameter of another stage, or a value
        name = d.r.choice(given)
        return f"{d.eager.values[name].shape[0]},weight=@{name}{d.pick('', ',bias=False')}"
    return words_of(max(1, d.extent()), bias=maybe(d, 0.3, False))


def matmul(d, shape):
    if not shape:
        return None
    fitting = [n for n, s in d.shapes.items() if s and s[-2:][0] == shape[-1]]
    if fitting and d.chance(0.6):
        return f"@{d.r.choice(fitting)}"
    other = d.pick([shape[-1]], [shape[-1], d.extent()], [shape[-1], d.extent()], [d.pick(1, shape[0]), shape[-1], d.extent()])
    return f"p{len(d.stages)}{brackets(other)}"


EPSILONS = (1e-5, 1e-3, 0.1, 1e-8)


def group_norm(d, shape):
    if len(shape) < 2:
        return None
    return words_of(d.divisor(shape[1]), eps=maybe(d, 0.2, d.pick(*EPSILONS)), affine=maybe(d, 0.4, False))


def batch_norm(d, shape):
    return words_of(training=maybe(d, 0.5, True), eps=maybe(d, 0.2, d.pick(*EPSILONS)), affine=maybe(d, 0.4, False))


def instance_norm(d, shape):
    return words_of(eps=maybe(d, 0.2, d.pick(*EPSILONS)), affine=maybe(d, 0.5, True))


def layer_norm(d, shape):
    if not shape:
        return None
    tail = shape[d.r.randrange(len(shape)) :]
    return words_of(tail, eps=maybe(d, 0.2, d.pick(*EPSILONS)), affine=maybe(d, 0.4, False), bias=maybe(d, 0.2, False))


def rms_norm(d, shape):
    if not shape:
        return None
    return words_of(shape[d.r.randrange(len(shape)) :], eps=maybe(d, 0.5, d.pick(*EPSILONS)), affine=maybe(d, 0.4, False))


BOUNDED = {
    "leaky_relu": lambda d: words_of(d.pick(0.01, 0.2, 1.5, -0.5, 0.0)),
    "elu": lambda d: words_of(d.pick(1.0, 0.3, 1.7)),
    "gelu": lambda d: d.pick("", "approximate='tanh'"),
    "hardtanh": lambda d: words_of(*d.pick((-1.0, 1.0), (-0.2, 0.7), (0.0, 6.0))),
    "softplus": lambda d: words_of(d.pick(1, 2, 0.5), d.pick(20, 5)),
    "clamp": lambda d: d.pick("0,1", "min=-0.5", "max=0.25", "-2,2", "min=0", "1,-1"),
    "dropout": lambda d: d.pick("", "0.1"),
    "cast": lambda d: "'fp32'",
}
UNARY = """relu relu6 leaky_relu elu selu gelu silu mish sigmoid hardsigmoid tanh hardtanh hardswish softplus softsign exp
neg abs square erf clamp dropout cast""".split()
ROUGH = ["log", "sqrt", "rsqrt"]  # NaN for half of all values: seldom


def binary(op):
    def arguments(d, shape):
        kind = d.pick("number", "param", "param", "value", "value", "input")
        alpha = maybe(d, 0.15, d.pick(2, -0.5)) if op in ("add", "sub") else None
        if kind == "number" and d.chance(0.04):
            return d.pick("inf", "-inf", "nan", "0", "1e30", "1e-30")
        if kind == "number":
            return words_of(d.pick(0.5, -1, 2, 3, -0.25, 1000, 0.001, 7), alpha=alpha)
        if kind == "value":
            near = [n for n, s in d.shapes.items() if broadcast(s, shape)]
            other = f"@{d.r.choice(near)}" if near else None
        elif kind == "input" and len(d.inputs) < 3 and d.chance(0.3):
            before = dict(d.eager.values), list(d.inputs), dict(d.shapes)
            d.new_input(d.broadcasting(shape))
            other = f"@{list(d.shapes)[-1]}"
            if not broadcast(d.shapes[other[1:]], shape):
                d.eager.values, d.inputs, d.shapes = before
                other = None
        else:
            other = f"p{len(d.stages)}{brackets(d.broadcasting(shape))}"
        return other and (other if alpha is None else f"{other},alpha={alpha}")

    return arguments


def broadcast(a, b):
    try:
        return math.prod(torch.broadcast_shapes(a, b)) <= MOST_ELEMENTS
    except RuntimeError:
        return False


def pool(rank, average):
    def arguments(d, shape):
        if len(shape) != rank + 2 and not (len(shape) == rank + 1 and d.chance(0.15)):
            return None
        kernel = d.per_axis(rank, 1, d.pick(2, 3, 4))
        most = (kernel if isinstance(kernel, int) else min(kernel)) // 2
        named = {"stride": maybe(d, 0.5, d.per_axis(rank, 1, d.pick(2, 3, 6))),
                 "padding": maybe(d, 0.4, d.per_axis(rank, 0, most)), "ceil_mode": maybe(d, 0.3, True)}  # fmt: skip
        if average:
            named["count_include_pad"] = maybe(d, 0.3, False)
            named["divisor_override"] = maybe(d, 0.15, d.r.randint(1, 9)) if rank > 1 else None
        else:
            named["dilation"] = maybe(d, 0.25, d.per_axis(rank, 1, 3))
        return words_of(kernel, **named)

    return arguments


def adaptive(rank):
    return lambda d, shape: d.pick("1", words_of((1,) * rank), words_of(d.per_axis(rank, 1, 5))) if len(shape) == rank + 2 else None


def permute(d, shape):
    return words_of(tuple(d.r.sample(range(len(shape)), len(shape)))) if shape else None


def expand(d, shape):
    grown = tuple(d.r.randint(1, 4) if n == 1 and d.chance(0.7) else d.pick(n, -1) for n in shape)
    return words_of(grown) if shape and math.prod(max(n, m) for n, m in zip(grown, shape)) <= MOST_ELEMENTS else None


def cut(d, shape):
    if not shape:
        return None
    return words_of(d.r.randrange(-len(shape), len(shape)), start=maybe(d, 0.7, d.r.randint(-3, 3)), end=maybe(d, 0.4, d.r.randint(-2, 9)),
                    step=maybe(d, 0.3, d.r.randint(1, 3)))  # fmt: skip


def padding(d, shape):
    pairs = [n for _ in range(d.r.randint(1, min(len(shape), 3))) for n in (d.r.randint(-1, 3), d.r.randint(0, 2))] if shape else []
    return words_of(tuple(pairs), value=maybe(d, 0.4, d.pick(2.5, -1, "-inf"))) if pairs else None


def nearest(d, shape):
    """Sizes at which PyTorch's places in float32 are those in whole numbers."""
    if not 3 <= len(shape) <= 5 or 0 in shape[2:]:
        return None
    return words_of(tuple(n * d.pick(1, 2, 4) for n in shape[2:]))


def joined(d, shape):
    """With a parameter that has another extent along one dimension."""
    if not shape:
        return None
    at = d.r.randrange(len(shape))
    other = (*shape[:at], d.r.randint(0, 4), *shape[at + 1 :])
    return f"p{len(d.stages)}{brackets(other)},dim={at}" if math.prod(shape) + math.prod(other) <= MOST_ELEMENTS else None


def dims_of(d, rank):
    chosen = d.r.sample(range(rank), d.r.choice([1, 1, 2, d.r.randint(1, rank)]) if rank > 1 else rank)
    return tuple(n - rank if d.chance(0.4) else n for n in chosen)


def reduction(d, shape):
    keepdim = maybe(d, 0.5, True)
    if not shape or d.chance(0.06):
        return words_of(keepdim=keepdim)
    dims = dims_of(d, len(shape))
    return words_of(dims[0] if len(dims) == 1 else dims, keepdim=keepdim)


def softmax(d, shape):
    return words_of(d.r.randrange(-len(shape), len(shape))) if shape else None


def reshape(d, shape):
    """Neighbouring extents are joined, or one is split."""
    new = list(shape)
    at = d.r.randrange(len(new)) if new else 0
    if len(new) > 1 and at and d.chance(0.5):
        new[at - 1 : at + 1] = [new[at - 1] * new[at]]
    elif new:
        inner = d.divisor(new[at])
        new[at : at + 1] = [new[at] // inner, inner]
    if new and 0 not in new and d.chance(0.3):
        new[d.r.randrange(len(new))] = -1
    return f"{tuple_of(tuple(new))}" if new else None


def flatten(d, shape):
    if not shape:
        return None
    first = d.r.randrange(len(shape))
    return words_of(first, d.pick(-1, d.r.randrange(first, len(shape))))


def squeeze(d, shape):
    return words_of(*maybe(d, 0.5, (d.r.randrange(len(shape)),)) or ()) if shape else None


def unsqueeze(d, shape):
    return words_of(d.r.randint(-len(shape) - 1, len(shape)))


def unary(d, shape):
    return ""


# operator, how often, family, arguments (None: not on this shape)
ROWS = [
    *((f"conv{r}d", 16, "convolution", convolution(r)) for r in (1, 2, 3)),
    *((f"conv_transpose{r}d", 6, "convolution", transposed(r)) for r in (1, 2, 3)),
    ("linear", 4, "product", linear),
    ("matmul", 2, "product", matmul),
    ("group_norm", 5, "norm", group_norm),
    ("batch_norm", 3, "norm", batch_norm),
    ("instance_norm", 2, "norm", instance_norm),
    ("layer_norm", 3, "norm", layer_norm),
    ("rms_norm", 2, "norm", rms_norm),
    *((op, 0.7, "pointwise", lambda d, shape, op=op: BOUNDED[op](d) if op in BOUNDED else "") for op in UNARY),
    *((op, 0.15, "pointwise", lambda d, shape: "") for op in ROUGH),
    *((op, 2, "residual", binary(op)) for op in ("add", "sub", "mul", "maximum", "minimum")),
    ("div", 0.6, "residual", binary("div")),
    *((f"max_pool{r}d", 2, "pool", pool(r, False)) for r in (1, 2, 3)),
    *((f"avg_pool{r}d", 2, "pool", pool(r, True)) for r in (1, 2, 3)),
    *((f"adaptive_avg_pool{r}d", 0.5, "pool", adaptive(r)) for r in (1, 2, 3)),
    *((op, 1, "reduction", reduction) for op in ("sum", "mean", "max", "min", "logsumexp")),
    *((op, 1, "softmax", softmax) for op in ("softmax", "log_softmax")),
    ("reshape", 1, "shape", reshape),
    ("flatten", 0.6, "shape", flatten),
    ("squeeze", 0.8, "shape", squeeze),
    ("unsqueeze", 1, "shape", unsqueeze),
    ("permute", 1, "shape", permute),
    ("expand", 0.5, "shape", expand),
    ("flip", 0.5, "shape", lambda d, shape: words_of(dims_of(d, len(shape))) if shape else None),
    ("slice", 1, "shape", cut),
    ("pad", 1, "shape", padding),
    ("interpolate", 1, "shape", nearest),
    ("cat", 1.5, "shape", joined),
]
