"""What is measured: the three blocks at full size, each of them growing in one direction, single operators, and on a GPU
chains drawn at random."""

import re
from dataclasses import dataclass

BLOCKS = {
    "A": "x[{n},{c},{h},{h}] | conv2d({k},3) | group_norm({g}) | mul(scale[{k},1,1]) | max_pool2d(4) | clamp(0,1)",
    "B": "x[{n},{c},{h},{h}] | conv2d({k},3) @c | group_norm({g}) | tanh | hardswish | add(@c)"
         " | logsumexp(1,keepdim=True)",
    "C": "x[{n},{c},{h},{h}] | conv2d({k},3) | add(bias[{k},1,1]) | mul(scale[{k},1,1]) | sigmoid | group_norm({g})",
}
FULL = {"A": (128, 8, 128, 64), "B": (128, 8, 128, 64), "C": (128, 8, 256, 32)}  # batch, channels, image, outputs
TINY = {"A": (2, 8, 20, 16), "B": (2, 8, 20, 16), "C": (2, 8, 20, 16)}

# Each operator on a tensor the size of a block's inside (A and B: 64 channels of 126x126), 16 samples of it.
OPERATORS = {
    "conv2d 3x3, 8 to 64": "x[16,8,128,128] | conv2d(64,3)",
    "conv2d 3x3, 64 to 64": "x[16,64,56,56] | conv2d(64,3,padding=1)",
    "conv2d 3x3 stride 2": "x[16,64,56,56] | conv2d(128,3,stride=2,padding=1)",
    "conv2d 1x1": "x[16,64,56,56] | conv2d(256,1)",
    "conv2d 3x3 depthwise": "x[16,64,112,112] | conv2d(64,3,padding=1,groups=64)",
    "conv_transpose2d 4x4 stride 2": "x[16,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1)",
    "linear": "x[2048,1024] | linear(1024)",
    "group_norm": "x[16,64,126,126] | group_norm(16)",
    "batch_norm": "x[16,64,126,126] | batch_norm",
    "layer_norm": "x[4096,1024] | layer_norm(1024)",
    "max_pool2d": "x[16,64,126,126] | max_pool2d(4)",
    "tanh": "x[16,64,126,126] | tanh",
    "gelu": "x[16,64,126,126] | gelu",
    "softmax": "x[4096,1024] | softmax(1)",
    "logsumexp over channels": "x[16,64,126,126] | logsumexp(1,keepdim=True)",
    "conv2d, batch_norm, relu": "x[16,64,56,56] | conv2d(64,3,padding=1) | batch_norm | relu",
}
# Layers of published networks, one sample: other filters, strides and dilations, depthwise and transposed ones, tiny images.
# On the CPU alone.
FILTERS = {
    "conv2d 3x3 dilation 2, 512 to 512": "x[1,512,28,28] | conv2d(512,3,padding=2,dilation=2)",
    "conv2d 3x3 dilation 6": "x[1,256,33,33] | conv2d(256,3,padding=6,dilation=6)",
    "conv2d 3x3 dilation 12": "x[1,256,33,33] | conv2d(256,3,padding=12,dilation=12)",
    "conv2d 3x3 dilation 36": "x[1,256,33,33] | conv2d(256,3,padding=36,dilation=36)",
    "conv2d 3x3, 512 to 512, 7x7": "x[1,512,7,7] | conv2d(512,3,padding=1)",
    "conv2d 3x3, 256 to 256, 14x14": "x[1,256,14,14] | conv2d(256,3,padding=1)",
    "conv2d 3x3 stride 2, 256 to 256": "x[1,256,32,32] | conv2d(256,3,stride=2,padding=1)",
    "conv2d 5x5, 64 to 64": "x[1,64,56,56] | conv2d(64,5,padding=2)",
    "conv2d 7x7, 64 to 64": "x[1,64,28,28] | conv2d(64,7,padding=3)",
    "conv2d 4x4 stride 2, 64 to 128": "x[1,64,128,128] | conv2d(128,4,stride=2,padding=1)",
    "conv2d 4x4 stride 2, 256 to 512": "x[1,256,32,32] | conv2d(512,4,stride=2,padding=1)",
    "conv2d 7x7 stride 2, 3 to 64": "x[1,3,224,224] | conv2d(64,7,stride=2,padding=3)",
    "conv2d 4x4 stride 4, 3 to 96": "x[1,3,224,224] | conv2d(96,4,stride=4)",
    "conv2d 16x16 stride 16, 3 to 768": "x[1,3,224,224] | conv2d(768,16,stride=16)",
    "conv2d 1x1, 64 to 256": "x[1,64,56,56] | conv2d(256,1)",
    "conv2d 1x1, 512 to 2048, 7x7": "x[1,512,7,7] | conv2d(2048,1)",
    "conv2d 1x1 stride 2, 256 to 512": "x[1,256,56,56] | conv2d(512,1,stride=2)",
    "depthwise 3x3, 112x112": "x[1,32,112,112] | conv2d(32,3,padding=1,groups=32)",
    "depthwise 3x3, 56x56": "x[1,144,56,56] | conv2d(144,3,padding=1,groups=144)",
    "depthwise 3x3, 14x14": "x[1,384,14,14] | conv2d(384,3,padding=1,groups=384)",
    "depthwise 3x3, 7x7": "x[1,960,7,7] | conv2d(960,3,padding=1,groups=960)",
    "depthwise 3x3 stride 2, 112x112": "x[1,96,112,112] | conv2d(96,3,stride=2,padding=1,groups=96)",
    "depthwise 3x3 stride 2, 56x56": "x[1,144,56,56] | conv2d(144,3,stride=2,padding=1,groups=144)",
    "depthwise 3x3 stride 2, 14x14": "x[1,576,14,14] | conv2d(576,3,stride=2,padding=1,groups=576)",
    "depthwise 5x5, 28x28": "x[1,240,28,28] | conv2d(240,5,padding=2,groups=240)",
    "depthwise 5x5, 7x7": "x[1,1152,7,7] | conv2d(1152,5,padding=2,groups=1152)",
    "depthwise 5x5 stride 2, 56x56": "x[1,144,56,56] | conv2d(144,5,stride=2,padding=2,groups=144)",
    "depthwise 5x5 stride 2, 14x14": "x[1,672,14,14] | conv2d(672,5,stride=2,padding=2,groups=672)",
    "depthwise 7x7, 56x56": "x[1,96,56,56] | conv2d(96,7,padding=3,groups=96)",
    "conv_transpose2d 4x4, 1x1": "x[1,100,1,1] | conv_transpose2d(512,4)",
    "conv_transpose2d 4x4 stride 2, 4x4": "x[1,512,4,4] | conv_transpose2d(256,4,stride=2,padding=1)",
    "conv_transpose2d 2x2 stride 2, 7x7": "x[1,64,7,7] | conv_transpose2d(32,2,stride=2)",
    "conv_transpose2d 3x3 stride 2, 7x7": "x[4,128,7,7] | conv_transpose2d(64,3,stride=2,padding=1)",
    "layer_norm 96": "x[3136,96] | layer_norm(96)",
    "layer_norm 192": "x[784,192] | layer_norm(192)",
    "layer_norm 384": "x[196,384] | layer_norm(384)",
}
TINY_OPERATORS = {
    "conv2d 3x3": "x[2,4,9,9] | conv2d(8,3)",
    "conv2d 3x3 depthwise": "x[2,4,9,9] | conv2d(4,3,padding=1,groups=4)",
    "conv2d 3x3 dilation 4": "x[2,4,9,9] | conv2d(4,3,padding=4,dilation=4)",
    "conv_transpose2d 4x4 stride 2": "x[2,4,7,7] | conv_transpose2d(4,4,stride=2,padding=1)",
    "linear": "x[8,16] | linear(12)",
    "group_norm": "x[2,8,9,9] | group_norm(2)",
    "batch_norm": "x[2,8,9,9] | batch_norm",
    "layer_norm": "x[8,16] | layer_norm(16)",
    "gelu": "x[2,8,9,9] | gelu",
    "softmax": "x[8,16] | softmax(1)",
    "mean": "x[2,8,9,9] | mean((2,3))",
    "conv2d, relu": "x[2,4,9,9] | conv2d(8,3) | relu",
}

# Peers of the full-size rows; series and operators take one form of each.
ALL = ("convoy", "convoy unfused", "torch eager", "torch eager channels_last", "torch.compile",
       "torch.compile channels_last", "torch.compile max-autotune", "onnxruntime", "openvino")
HALF = ("convoy", "convoy float32", "torch eager", "torch eager channels_last", "torch.compile",
        "torch.compile channels_last", "torch.compile max-autotune")
FEW = ("convoy", "torch eager", "torch.compile", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Case:
    """One chain. `block`: A, B, C or None. `series`: full, batch, image, channels, operator, sample, or chain for one that
    was named; `size`: along it."""

    chain: str
    block: str
    series: str
    size: object
    peers: tuple

    @property
    def title(self):
        return f"{self.block} {self.series} {self.size}" if self.block else str(self.size)


def block_chain(block, n, c, h, k):
    return BLOCKS[block].format(n=n, c=c, h=h, k=k, g=max(1, k // 4))


def _series(block, sizes, make):
    """Convoy at every size, where a cliff would show; its peers at some."""
    for name, (points, compared) in sizes.items():
        for size in points:
            yield Case(make(block, name, size), block, name, size, FEW if size in compared else ("convoy",))


def _point(block, series, size, batch=8, image=64):
    """The full block, and one of its extents changed; batch and image are smaller where another one grows."""
    _, c, _, k = FULL[block]
    n, h = (size, 128) if series == "batch" else (batch, size) if series == "image" else (batch, image)
    return block_chain(block, n, *((size, h, size) if series == "channels" else (c, h, k)))


def powers(first, last):
    return tuple(2**i for i in range(first.bit_length() - 1, last.bit_length()))


SERIES = {"batch": (powers(1, 256), (1, 16, 256)), "image": (powers(16, 512), (16, 128, 512)),
          "channels": (powers(4, 256), (4, 32, 256))}


def blocks():
    return [Case(block_chain(b, *e), b, "full", e[0], ALL) for b, e in FULL.items()]


def in_half(chain, dtype):
    """Every declaration in a dtype of 16 bits."""
    return re.sub(r"(?<=\w)\[[\d,]+\]", lambda m: f"{m[0]}:{dtype}", chain)


def halves():
    return [Case(in_half(c.chain, dtype), c.block, "full", c.size, HALF) for dtype in ("bf16", "fp16") for c in blocks()]


def operators():
    return [Case(chain, None, "operator", name, FEW) for name, chain in OPERATORS.items()]


def filters():
    return [Case(chain, None, "operator", name, FEW) for name, chain in FILTERS.items()]


def series():
    return [case for block in BLOCKS for case in _series(block, SERIES, _point)]


def drawn(texts):
    return [Case(chain, None, "sample", f"sample {i}", ()) for i, chain in enumerate(texts, 1)]


def full():
    return blocks() + operators() + filters() + series()


def smoke():
    sizes = {n: (points, points) for n, points in {"batch": (1, 2), "image": (12, 13), "channels": (4, 8)}.items()}
    few = tuple(p for p in FEW if p != "torch.compile")  # compiling takes many seconds each time
    every = tuple(p for p in ALL if not p.startswith("torch.compile"))
    cases = [Case(block_chain(b, *e), b, "full", e[0], every + ("torch.compile",) * (b == "A"))
             for b, e in TINY.items()]
    cases += [Case(chain, None, "operator", name, few) for name, chain in TINY_OPERATORS.items()]
    cases += [Case(c.chain, c.block, c.series, c.size, few) for c in
              _series("A", sizes, lambda b, s, v: _point(b, s, v, 2, 12).replace("128,128", "12,12"))]
    return cases


SUITES = {"full": full, "blocks": blocks, "halves": halves, "operators": operators, "filters": filters, "series": series,
          "smoke": smoke}
