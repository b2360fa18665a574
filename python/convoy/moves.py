"""Rules of the vocabulary for operators that move elements, and for those made of several others: losses, norms of
vectors. Views inside a region are copies in a program; at its border they stay PyTorch's (partition.py).
"""

import torch

from .vocabulary import agree, plain, refuse_if, rule, shape_of
from .work import product

# Views that Convoy computes as copies; in PyTorch they cost nothing.
MOVED_VIEWS = {"slice", "narrow", "select", "permute", "transpose", "swapaxes", "swapdims", "t", "numpy_T", "mT", "movedim",
               "expand", "contiguous", "alias"}  # fmt: skip
MOST_JOINED = 8  # tensors of one cat


def renamed(emit, x, shape):
    return emit("reshape", x, shape=list(shape))


@rule("alias")
def the_same(emit, a):
    return renamed(emit, a.self, shape_of(a.self))


@rule("contiguous", "clone")
def laid_out(emit, a):
    """Strides are not part of a program, but PyTorch decides by them how it lays out its own results (program.py)."""
    usual = torch.preserve_format if a.name == "clone" else torch.contiguous_format
    layout = str(a.memory_format or usual).removeprefix("torch.")
    return emit("reshape", a.self, shape=list(shape_of(a.self)), as_in=f"{a.name}.{layout}")


@rule("cat", "concat", "concatenate")
def cat(emit, a):
    agree(*a.tensors)
    if len(a.tensors) == 1:
        return renamed(emit, a.tensors[0], shape_of(a.tensors[0]))
    joined, *rest = a.tensors
    while rest:
        now, rest = rest[: MOST_JOINED - 1], rest[MOST_JOINED - 1 :]
        joined = emit("cat", joined, *now, dim=a.dim)
    return joined


def cut(emit, x, dim, start, end, step=1):
    """x[start:end:step] along a dimension, as Python counts."""
    extent = shape_of(x)[dim]
    start, end, step = slice(start, end, step).indices(extent)
    return emit("slice", x, dim=dim, start=start, end=end, step=step)


@rule("slice.Tensor")
def slices(emit, a):
    return cut(emit, a.self, a.dim, a.start, a.end, a.step)


@rule("narrow")
def narrow(emit, a):
    start = a.start + (shape_of(a.self)[a.dim] if a.start < 0 else 0)
    return cut(emit, a.self, a.dim, start, start + a.length)


@rule("select.int")
def select(emit, a):
    x, shape = a.self, list(shape_of(a.self))
    index = a.index + (shape[a.dim] if a.index < 0 else 0)
    del shape[a.dim]
    return renamed(emit, cut(emit, x, a.dim, index, index + 1), shape)


def exchanged(emit, x, first, second):
    dims = list(range(len(shape_of(x))))
    if not dims:
        return renamed(emit, x, ())
    dims[first], dims[second] = dims[second], dims[first]
    return emit("permute", x, dims=dims)


@rule("permute")
def permute(emit, a):
    return emit("permute", a.self, dims=list(a.dims))


@rule("transpose.int", "swapaxes", "swapdims")
def transpose(emit, a):
    first, second = (a.dim0, a.dim1) if hasattr(a, "dim0") else (a.axis0, a.axis1)
    return exchanged(emit, a.self, first, second)


@rule("t", "numpy_T", "mT")
def reversed_dims(emit, a):
    rank = len(shape_of(a.self))
    if a.name == "mT":
        return exchanged(emit, a.self, -2, -1)
    return emit("permute", a.self, dims=list(range(rank))[::-1])


@rule("movedim.intlist", "movedim.int")
def movedim(emit, a):
    rank = len(shape_of(a.self))
    listed = [[d] if isinstance(d, int) else d for d in (a.source, a.destination)]
    source, destination = ([d % rank for d in dims] for dims in listed)
    placed = dict(zip(destination, source))
    rest = iter(d for d in range(rank) if d not in source)
    return emit("permute", a.self, dims=[placed[d] if d in placed else next(rest) for d in range(rank)])


@rule("flip")
def flip(emit, a):
    return emit("flip", a.self, dims=list(a.dims))


@rule("expand")
def expand(emit, a):
    shape, size = shape_of(a.self), list(a.size)
    x = renamed(emit, a.self, (*[1] * (len(size) - len(shape)), *shape)) if len(size) > len(shape) else a.self
    return emit("expand", x, shape=size)


@rule("pad", "constant_pad_nd")
def pad(emit, a):
    refuse_if(getattr(a, "mode", "constant") != "constant", f"padding by {getattr(a, 'mode', '')}")
    return emit("pad", a.self, pad=list(a.pad), value=plain(a.value or 0))


def nearest_sources(size, out, scale):
    """The element that each result is copied from, in PyTorch's arithmetic."""
    step = torch.tensor(1.0 / scale if scale else size / out, dtype=torch.float32)
    return torch.floor(torch.arange(out, dtype=torch.float32) * step).clamp(max=size - 1).long()


@rule("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def nearest(emit, a):
    """PyTorch computes an element's index in float32; supported if integers give the same."""
    sizes = shape_of(a.input)[2:]
    scales = a.scale_factors or [None] * len(sizes)
    outs = a.output_size or [int(size * scale) for size, scale in zip(sizes, scales)]
    for size, out, scale in zip(sizes, outs, scales):
        exact = torch.div(torch.arange(out) * size, max(out, 1), rounding_mode="floor")
        refuse_if(not torch.equal(nearest_sources(size, out, scale), exact), f"{size} to {out} elements at scale {scale}")
    return emit("interpolate", a.input, size=list(outs))


@rule("pixel_shuffle")
def pixel_shuffle(emit, a):
    *front, c, h, w = shape_of(a.self)
    r, n = a.upscale_factor, product(front)
    parts = emit("permute", renamed(emit, a.self, (n, c // r**2, r, r, h, w)), dims=[0, 1, 4, 2, 5, 3])
    return renamed(emit, parts, (*front, c // r**2, h * r, w * r))


@rule("pixel_unshuffle")
def pixel_unshuffle(emit, a):
    *front, c, h, w = shape_of(a.self)
    r, n = a.downscale_factor, product(front)
    parts = emit("permute", renamed(emit, a.self, (n, c, h // r, r, w // r, r)), dims=[0, 1, 3, 5, 2, 4])
    return renamed(emit, parts, (*front, c * r**2, h // r, w // r))


@rule("channel_shuffle")
def channel_shuffle(emit, a):
    n, c, *space = shape_of(a.self)
    parts = emit("permute", renamed(emit, a.self, (n, a.groups, c // a.groups, product(space))), dims=[0, 2, 1, 3])
    return renamed(emit, parts, (n, c, *space))


# ---- losses and norms of vectors -----------------------------------------------------------------------------------


def reduced(emit, x, reduction):
    """reduction: PyTorch's number for none, mean and sum."""
    return x if reduction == 0 else emit("mean" if reduction == 1 else "sum", x)


@rule("mse_loss")
def mse_loss(emit, a):
    agree(a.self, a.target)
    return reduced(emit, emit("square", emit("sub", a.self, a.target)), a.reduction)


@rule("l1_loss")
def l1_loss(emit, a):
    agree(a.self, a.target)
    return reduced(emit, emit("abs", emit("sub", a.self, a.target)), a.reduction)


@rule("linalg_vector_norm")
def vector_norm(emit, a):
    refuse_if(a.dtype is not None, "a norm in another dtype")
    refuse_if(a.ord not in (1, 2, float("inf")), f"order {a.ord}; 1, 2 and inf are supported")
    dims = {"dim": [a.dim] if isinstance(a.dim, int) else a.dim or None, "keepdim": a.keepdim}
    if a.ord == 2:  # relu: the gradient at zero is zero, as PyTorch's
        return emit("sqrt", emit("relu", emit("sum", emit("square", a.self), **dims)))
    return emit("sum" if a.ord == 1 else "max", emit("abs", a.self), **dims)


@rule("glu")
def glu(emit, a):
    half = shape_of(a.self)[a.dim] // 2
    gate = emit("sigmoid", emit("slice", a.self, dim=a.dim, start=half))
    return emit("mul", emit("slice", a.self, dim=a.dim, end=half), gate)
