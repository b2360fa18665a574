"""The modules that must never be slower through Convoy: single operators, losses, attention, recurrent steps, blocks and
networks, each with its inputs for the CPU and for the GPU. bench/modules/never_slower.py measures them.

A case is a name, a function that makes the module, and the inputs' shapes on either device.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import blocks as b
import networks as net
from blocks import Function


@dataclass(frozen=True)
class Classes:
    """An input of whole numbers below `count`."""

    count: int
    shape: tuple


@dataclass(frozen=True)
class Case:
    name: str
    make: object
    cpu: list
    cuda: list

    def build(self, device):
        """Module and inputs on a device, the same numbers every time."""
        torch.manual_seed(0)
        module = self.make().eval()
        with torch.no_grad():
            for part in module.modules():  # a trained network's statistics are not 0 and 1
                if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
                    part.running_mean.normal_(0, 0.1)
                    part.running_var.uniform_(0.5, 1.5)
        shapes = self.cuda if device.type == "cuda" else self.cpu
        inputs = [torch.randint(s.count, s.shape) if isinstance(s, Classes) else torch.randn(s) for s in shapes]
        return module.to(device), [i.to(device) for i in inputs]


class Weighted(nn.Module):
    """A function of parameters of given shapes, then of its inputs."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(0.1 * torch.randn(s)) for s in shapes)
        self.function = function

    def forward(self, *args):
        return self.function(*self.weights, *args)


def of(function):
    return lambda: Function(function)


def weighted(function, *shapes):
    return lambda: Weighted(function, *shapes)


CASES = []


def add(name, make, cpu, cuda=None):
    CASES.append(Case(name, make, cpu, cuda or cpu))


# ---- single operators --------------------------------------------------------------------------------------------

# From about 60 µs on: a call that passes through the front end takes 1 to 4 µs more, which shorter ones would show.
SMALL, LARGE = (3072, 1024), (8192, 1024)
SMALL_GPU, LARGE_GPU = (16384, 1024), (65536, 1024)


def both(name, make, inputs=1):
    """At two sizes, for modules whose parameters do not depend on it."""
    add(f"{name}, small", make, inputs * [SMALL], inputs * [SMALL_GPU])
    add(f"{name}, large", make, inputs * [LARGE], inputs * [LARGE_GPU])


both("relu", nn.ReLU)
both("gelu", nn.GELU)
both("sigmoid", nn.Sigmoid)
both("add", of(torch.add), 2)
both("hardswish, mul", of(lambda x: F.hardswish(x) * 0.5))
both("swish written out", of(lambda x: x * torch.sigmoid(x)))
both("gelu written out", of(lambda x: 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))))
both("clamp, scale, shift", of(lambda x: x.clamp(-1, 1) * 0.5 + 0.5))
both("softmax of rows", lambda: nn.Softmax(-1))
both("log_softmax of rows", lambda: nn.LogSoftmax(-1))
both("logsumexp of rows", of(lambda x: x.logsumexp(-1)))
both("sum of rows", of(lambda x: x.sum(-1)))
both("max of rows", of(lambda x: x.amax(-1)))
both("sum of columns", of(lambda x: x.sum(0)))
both("mean of everything", of(lambda x: x.mean()))
both("max of everything", of(lambda x: x.max()))
both("row norm written out", of(lambda x: x / x.norm(dim=-1, keepdim=True)))
both("standardised rows", of(lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()))
add("layer_norm, small", lambda: nn.LayerNorm(512), [(512, 512)], [(32768, 512)])
add("layer_norm, large", lambda: nn.LayerNorm(1024), [LARGE], [LARGE_GPU])
add("layer_norm 96", lambda: nn.LayerNorm(96), [(3136, 96)], [(64, 3136, 96)])
add("rms_norm", lambda: nn.RMSNorm(1024), [LARGE], [LARGE_GPU])
add("rms_norm written out", lambda: b.RMSNorm(1024), [LARGE], [LARGE_GPU])
add("sum of half a million", of(lambda x: x.sum(-1)), [(8, 500000)], [(32, 500000)])

IMAGE, IMAGE_GPU = (16, 64, 56, 56), (64, 64, 112, 112)
TINY, TINY_GPU = (32, 64, 28, 28), (64, 64, 56, 56)
for name, make in {
    "group_norm": lambda c: nn.GroupNorm(8, c),
    "instance_norm": lambda c: nn.InstanceNorm2d(c, affine=True),
    "batch_norm": nn.BatchNorm2d,
    "max_pool 2": lambda c: nn.MaxPool2d(2),
    "avg_pool 3 stride 2": lambda c: nn.AvgPool2d(3, 2, 1),
    "global average": lambda c: nn.AdaptiveAvgPool2d(1),
    "softmax of channels": lambda c: nn.Softmax(1),
    "mean of space": lambda c: Function(lambda x: x.mean((2, 3))),
}.items():
    add(f"{name}, image", lambda make=make: make(64), [IMAGE], [IMAGE_GPU])
    add(f"{name}, small", lambda make=make: make(64), [TINY], [TINY_GPU])

# ---- products ----------------------------------------------------------------------------------------------------

add("linear, one row", lambda: nn.Linear(4096, 4096), [(1, 4096)])
add("linear, few rows", lambda: nn.Linear(2048, 2048), [(16, 2048)], [(128, 2048)])
add("linear, large", lambda: nn.Linear(768, 768), [(256, 768)], [(16384, 768)])
add("linear, one column", lambda: nn.Linear(512, 1), [(2048, 512)], [(65536, 512)])
add("linear, ten columns", lambda: nn.Linear(512, 10), [(256, 512)], [(32768, 512)])
add("linear, relu", lambda: nn.Sequential(nn.Linear(512, 512), nn.ReLU()), [(256, 512)], [(8192, 512)])
add("linear, gelu, large", lambda: nn.Sequential(nn.Linear(768, 3072), nn.GELU()), [(64, 768)], [(6304, 768)])
add("linear, softmax", lambda: nn.Sequential(nn.Linear(512, 1000), nn.Softmax(-1)), [(64, 512)], [(4096, 512)])
add("x @ w", weighted(lambda w, x: x @ w, (512, 512)), [(256, 512)], [(4096, 512)])
add("x @ w.T", weighted(lambda w, x: x @ w.T, (512, 512)), [(256, 512)], [(4096, 512)])
add("x @ y", of(torch.matmul), [(256, 512), (512, 256)], [(2048, 2048), (2048, 2048)])
add("x @ y.T", of(lambda x, y: x @ y.T), [(256, 512), (256, 512)], [(2048, 2048), (2048, 2048)])
add("x.T @ y", of(lambda x, y: x.T @ y), [(512, 256), (512, 256)], [(2048, 2048), (2048, 2048)])
add("matrix x vector", of(torch.matmul), [(2048, 1024), (1024, 1)], [(4096, 65536), (65536, 1)])
add("bmm, small", of(torch.bmm), [(32, 64, 64), (32, 64, 64)], [(512, 128, 64), (512, 64, 128)])
add("bmm, large", of(torch.bmm), [(16, 128, 64), (16, 64, 128)], [(128, 512, 64), (128, 64, 512)])
add("long dot", of(lambda x, y: (x * y).sum(-1)), [(64, 8192), (64, 8192)], [(1024, 65536), (1024, 65536)])
add("outer sum", of(lambda x, y: F.relu(x.unsqueeze(1) + y)), [(64, 256), (128, 256)], [(512, 1024), (128, 1024)])
add("scaled product", weighted(lambda w, x: torch.sigmoid(x @ w) * x, (512, 512)), [(256, 512)], [(8192, 512)])
add("low rank", lambda: nn.Sequential(nn.Linear(512, 16), nn.Linear(16, 512)), [(256, 512)], [(8192, 512)])

# ---- convolutions ------------------------------------------------------------------------------------------------


def conv(name, make, cpu, cuda):
    add(name, make, [cpu], [cuda])


conv("conv 3x3, 64 channels", lambda: nn.Conv2d(64, 64, 3, padding=1), (1, 64, 56, 56), (32, 64, 56, 56))
conv("conv 3x3, 256 channels", lambda: nn.Conv2d(256, 256, 3, padding=1), (1, 256, 14, 14), (32, 256, 14, 14))
conv("conv 3x3, 512 channels", lambda: nn.Conv2d(512, 512, 3, padding=1), (1, 512, 7, 7), (32, 512, 7, 7))
conv("conv 1x1", lambda: nn.Conv2d(64, 256, 1), (1, 64, 56, 56), (32, 64, 56, 56))
conv("conv 1x1, deep", lambda: nn.Conv2d(512, 128, 1), (1, 512, 14, 14), (32, 512, 14, 14))
conv("conv 3x3 stride 2", lambda: nn.Conv2d(64, 128, 3, 2, 1), (1, 64, 56, 56), (32, 64, 56, 56))
conv("conv 7x7 stem", lambda: nn.Conv2d(3, 64, 7, 2, 3), (1, 3, 112, 112), (32, 3, 224, 224))
conv("conv 3x3 dilated", lambda: nn.Conv2d(64, 64, 3, padding=12, dilation=12), (1, 64, 32, 32), (32, 64, 64, 64))
conv("conv 3x3 grouped", lambda: nn.Conv2d(128, 128, 3, padding=1, groups=8), (1, 128, 28, 28), (32, 128, 28, 28))
conv("depthwise 3x3", lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), (1, 96, 56, 56), (32, 96, 56, 56))
conv("depthwise 3x3 stride 2", lambda: nn.Conv2d(96, 96, 3, 2, 1, groups=96), (1, 96, 56, 56), (32, 96, 112, 112))
conv("depthwise 7x7", lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 28, 28), (32, 96, 56, 56))
conv("patches 16x16", lambda: nn.Conv2d(3, 192, 16, 16), (1, 3, 224, 224), (32, 3, 224, 224))
conv("transposed 4x4 stride 2", lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), (4, 64, 16, 16), (64, 64, 16, 16))
conv("transposed 2x2 stride 2", lambda: nn.ConvTranspose2d(128, 64, 2, 2), (1, 128, 28, 28), (16, 128, 28, 28))
conv("conv1d", lambda: nn.Conv1d(64, 64, 9, padding=4), (2, 64, 500), (32, 64, 2000))
conv("conv3d", lambda: nn.Conv3d(16, 32, 3, padding=1), (1, 16, 8, 28, 28), (8, 16, 16, 56, 56))
conv("conv, bias, relu", lambda: nn.Sequential(nn.Conv2d(32, 64, 3), nn.ReLU()), (2, 32, 32, 32), (32, 32, 64, 64))
conv("conv, batch_norm, relu", lambda: b.conv_norm(64, 64), (2, 64, 28, 28), (32, 64, 56, 56))
conv("conv, group_norm, silu", lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.SiLU()),
     (2, 64, 32, 32), (32, 64, 64, 64))
conv("conv, max_pool", lambda: nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)), (2, 16, 64, 64), (32, 16, 128, 128))
conv("depthwise separable", lambda: nn.Sequential(b.conv_norm(64, 64, groups=64), b.conv_norm(64, 128, 1)),
     (1, 64, 56, 56), (32, 64, 56, 56))

# ---- losses ------------------------------------------------------------------------------------------------------

PREDICTED, PREDICTED_GPU = (2048, 1000), (8192, 4096)
TARGET, TARGET_GPU = Classes(1000, (2048,)), Classes(4096, (8192,))
for name, make in {"mse": nn.MSELoss, "l1": nn.L1Loss, "smooth_l1": nn.SmoothL1Loss, "huber": nn.HuberLoss}.items():
    add(f"{name} loss", make, 2 * [PREDICTED], 2 * [PREDICTED_GPU])
add("mse written out", of(lambda x, y: ((x - y) ** 2).mean()), 2 * [PREDICTED], 2 * [PREDICTED_GPU])
add("l1 written out", of(lambda x, y: (x - y).abs().mean()), 2 * [PREDICTED], 2 * [PREDICTED_GPU])
add("cross entropy", nn.CrossEntropyLoss, [PREDICTED, TARGET], [PREDICTED_GPU, TARGET_GPU])
add("kl divergence", of(lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="batchmean")),
    2 * [PREDICTED], 2 * [PREDICTED_GPU])
add("hinge", of(lambda x, y: torch.clamp(1 - x * y, min=0).mean()), 2 * [PREDICTED], 2 * [PREDICTED_GPU])
add("cosine similarity", lambda: nn.CosineSimilarity(-1), 2 * [PREDICTED], 2 * [PREDICTED_GPU])
add("triplet margin", lambda: nn.TripletMarginLoss(), 3 * [(256, 512)], 3 * [(8192, 1024)])
add("classifier loss", lambda: nn.Sequential(nn.Linear(512, 1000), nn.LogSoftmax(-1)), [(128, 512)], [(4096, 512)])
add("focal weight", of(lambda x, y: ((1 - torch.sigmoid(x)) ** 2 * y).sum()), 2 * [PREDICTED], 2 * [PREDICTED_GPU])

# ---- attention, recurrent steps, layers of transformers -----------------------------------------------------------


class SelfAttention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


def sdpa(causal):
    return of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal))


HEADS, HEADS_GPU = (2, 4, 128, 64), (8, 12, 512, 64)
TOKENS, TOKENS_GPU = (1, 128, 192), (8, 512, 768)


def token(name, make):
    """make(width, heads)"""
    add(name, lambda: make(192, 4), [TOKENS], None)
    CASES[-1] = Case(name, lambda: make(192, 4), [TOKENS], [(16, 512, 192)])


add("scaled dot product", sdpa(False), 3 * [HEADS], 3 * [HEADS_GPU])
add("scaled dot product, causal", sdpa(True), 3 * [HEADS], 3 * [HEADS_GPU])
add("attention scores", of(lambda q, k: torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1)), 2 * [HEADS], 2 * [HEADS_GPU])
add("attention written out, heads", of(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v), 3 * [HEADS], 3 * [HEADS_GPU])
token("multi-head attention", lambda w, h: SelfAttention(w, h, batch_first=True))
token("attention, fused", lambda w, h: b.Attention(w, h))
token("attention, written out", lambda w, h: b.Attention(w, h, fused=False))
token("attention, written out, causal", lambda w, h: b.Attention(w, h, fused=False, causal=True))
token("transformer block", lambda w, h: b.TransformerBlock(w, h))
token("gpt block", lambda w, h: b.TransformerBlock(w, h, causal=True))
token("transformer encoder layer", lambda w, h: nn.TransformerEncoderLayer(w, h, 4 * w, batch_first=True, norm_first=True))
token("feed forward", lambda w, h: b.mlp(w, 4 * w))
token("gated feed forward", lambda w, h: b.GatedMLP(w, 3 * w))
token("norm, linear", lambda w, h: nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 3 * w)))
add("mixer block", lambda: b.MixerBlock(196, 192, 96, 768), [(1, 196, 192)], [(32, 196, 192)])

STATE = [(32, 256), (32, 256)]
for kind, cell in {"rnn": nn.RNNCell, "gru": nn.GRUCell}.items():
    add(f"{kind} cell", lambda cell=cell: cell(256, 256), STATE)
add("lstm layer", lambda: nn.LSTM(64, 128), [(16, 8, 64)], [(32, 32, 64)])
add("gru layer", lambda: nn.GRU(64, 128), [(16, 8, 64)], [(32, 32, 64)])
for kind in ("rnn", "gru", "lstm"):
    inputs = STATE + [(32, 256)] * (kind == "lstm")
    add(f"{kind} step written out", lambda kind=kind: b.WrittenCell(kind, 256, 256), inputs)
add("rnn step, concatenated", lambda: b.ConcatCell(256, 256, 128), STATE)

# ---- MLPs and blocks ---------------------------------------------------------------------------------------------


def perceptron(*widths):
    layers = [layer for a, c in zip(widths, widths[1:]) for layer in (nn.Linear(a, c), nn.ReLU())]
    return lambda: nn.Sequential(*layers[:-1])


add("mlp, narrow", perceptron(64, 64, 64, 10), [(64, 64)], [(65536, 64)])
add("mlp, wide", perceptron(512, 1024, 1024, 10), [(64, 512)], [(4096, 512)])
add("mlp, deep", perceptron(*[256] * 9), [(64, 256)], [(4096, 256)])
add("mlp, one sample", perceptron(784, 400, 200, 10), [(1, 784)])
add("mlp, batch_norm", lambda: nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.GELU(), nn.Linear(512, 256)), [(128, 256)], [(8192, 256)])
add("mlp, residual", lambda: b.Residual(b.mlp(256, 512, nn.SiLU)), [(128, 256)], [(8192, 256)])

FEATURES, FEATURES_GPU = (1, 64, 28, 28), (32, 64, 56, 56)
for name, make in {
    "basic block": lambda: b.basic_block(64, 64),
    "basic block, stride 2": lambda: b.basic_block(64, 128, 2),
    "bottleneck": lambda: b.bottleneck(64, 16),
    "bottleneck, projected": lambda: b.bottleneck(64, 64),
    "resnext block": lambda: b.bottleneck(64, 64, groups=8),
    "inverted residual": lambda: b.inverted_residual(64, 64, 4),
    "inverted residual, stride 2": lambda: b.inverted_residual(64, 96, 4, 2),
    "mbconv with squeeze": lambda: b.inverted_residual(64, 64, 4, 1, 5, nn.SiLU, 16),
    "squeeze and excite": lambda: b.SqueezeExcite(64, 8),
    "fire": lambda: b.Fire(64, 16, 64),
    "dense layer": lambda: b.DenseLayer(64),
    "convnext block": lambda: b.ConvNeXtBlock(64),
    "double conv": lambda: b.double_conv(64, 64),
    "aspp": lambda: b.ASPP(64, 32),
    "inception": lambda: b.Inception(64, 16, (24, 32), (8, 16), 16),
    "shuffle unit": lambda: b.ShuffleUnit(64, 64, 1),
    "shuffle unit, stride 2": lambda: b.ShuffleUnit(64, 128, 2),
    "conv, instance_norm, leaky": lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.InstanceNorm2d(64), nn.LeakyReLU(0.2)),
    "pre-activation block": lambda: b.Residual(nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))),
    "spatial attention": lambda: Function(lambda x: x * torch.sigmoid(x.mean(1, keepdim=True) + x.amax(1, keepdim=True))),
}.items():
    add(name, make, [FEATURES], [FEATURES_GPU])

# ---- networks ----------------------------------------------------------------------------------------------------

IMAGES, IMAGES_GPU = [(1, 3, 96, 96)], [(16, 3, 224, 224)]
for make in (net.alexnet, net.vgg11, net.vgg16, net.resnet18, net.resnet34, net.resnet50, net.mobilenet_v1, net.mobilenet_v2,
             net.efficientnet_b0, net.densenet121, net.squeezenet, net.shufflenet_v2, net.googlenet, net.convnext):
    add(make.__name__, make, IMAGES, IMAGES_GPU)
add("vgg16 with norms", lambda: net.vgg16(True), [(1, 3, 64, 64)], IMAGES_GPU)
add("resnet18, batch 4", net.resnet18, [(4, 3, 64, 64)], [(64, 3, 128, 128)])
add("lenet", net.lenet, [(16, 1, 28, 28)], [(256, 1, 28, 28)])
add("unet", net.UNet, [(1, 3, 64, 64)], [(4, 3, 256, 256)])
add("dcgan generator", net.dcgan_generator, [(4, 100, 1, 1)], [(64, 100, 1, 1)])
add("dcgan discriminator", net.dcgan_discriminator, [(4, 3, 64, 64)], [(64, 3, 64, 64)])
add("autoencoder", net.autoencoder, [(2, 3, 64, 64)], [(32, 3, 128, 128)])
add("vision transformer", lambda: net.VisionTransformer(depth=3), [(1, 3, 224, 224)], [(16, 3, 224, 224)])
add("mlp mixer", lambda: net.Mixer(depth=3), [(1, 3, 224, 224)], [(16, 3, 224, 224)])
add("convmixer", lambda: net.convmixer(depth=3), [(1, 3, 112, 112)], [(16, 3, 224, 224)])
add("gpt", lambda: net.GPT(depth=2), [Classes(1000, (1, 128))], [Classes(1000, (16, 128))])
add("pointnet", net.PointNet, [(2, 3, 512)], [(16, 3, 2048)])
