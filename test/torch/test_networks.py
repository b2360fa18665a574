"""The networks of examples/ at small sizes, and random networks of 5 to 30 layers. `CONVOY_NETWORKS=500` draws more of them."""

import copy
import importlib
import os
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import convoy
from agree import assert_agrees, kept, regions

# arguments of Model, shapes of its inputs
EXAMPLES = {
    "unet_residual": ((8, 8, 12, 4), [(2, 8, 9, 10), (2, 12)]),
    "unet_residual wider": ((8, 12, 12, 4), [(2, 8, 9, 10), (2, 12)]),
    "vae_decoder": ((8, 4, 2), [(1, 8, 7, 9)]),
    "video_vae": ((4, 2), [(1, 4, 3, 6, 7)]),
    "resnet50": (((1, 2, 1, 1), 8, 5), [(2, 3, 40, 36)]),
    "dcgan": ((6, 4, 3), [(2, 6, 1, 1)]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name):
    arguments, shapes = EXAMPLES[name]
    torch.manual_seed(0)
    model = importlib.import_module(f"examples.{name.split()[0]}").Model(*arguments)
    inputs = [torch.rand(shape) for shape in shapes]
    fast = convoy.compile(copy.deepcopy(model), regions="all")
    with torch.no_grad():
        assert_agrees(fast, model, *inputs)
        assert_agrees(convoy.compile(copy.deepcopy(model)), model, *inputs)
    assert regions(fast) == 1 and not kept(fast)


@pytest.mark.parametrize("name", sorted({n.split()[0] for n in EXAMPLES}))
def test_example_is_a_problem_file(name):
    module = importlib.import_module(f"examples.{name}")
    with torch.device("meta"):
        module.Model(*module.get_init_inputs())(*module.get_inputs())


# ---- random networks ---------------------------------------------------------------------------------------------------

ACTIVATIONS = [nn.ReLU, nn.SiLU, nn.GELU, nn.ReLU6, nn.Hardswish, nn.Tanh, nn.PReLU, nn.LeakyReLU, nn.Identity]
MOST_CHANNELS, MOST_PIXELS = 24, 400


class Network(nn.Module):
    """Layers that each read the value before them, and some an older one too. A layer is (kind, module or numbers)."""

    def __init__(self, r):
        super().__init__()
        self.modules_, self.plan, self.shape = nn.ModuleList(), [], (r.randint(1, 3), r.randint(1, 6), r.randint(4, 15), r.randint(4, 15))
        x, seen = torch.zeros(self.shape), [torch.zeros(self.shape)]
        for _ in range(r.randint(5, 30)):
            step = self.draw(r, x, seen)
            x = self.apply_step(step, x, seen)
            self.plan.append(step)
            seen.append(x)

    def module(self, module):
        self.modules_.append(module)
        return len(self.modules_) - 1

    def draw(self, r, x, seen):
        _, c, h, w = x.shape
        alike = [i for i, s in enumerate(seen) if s.shape == x.shape]
        joined = [i for i, s in enumerate(seen) if s.shape[2:] == x.shape[2:] and s.shape[1] + c <= MOST_CHANNELS]
        kind = r.choice(["conv"] * 4 + ["norm"] * 3 + ["act"] * 4 + ["pool", "add", "add", "cat", "cat", "up", "pad", "cut", "gate", "turn"])
        if kind == "conv" and min(h, w) >= 3:
            groups = r.choice([1, 1, 1, c])
            out = c if groups > 1 else r.randint(1, MOST_CHANNELS)
            kernel = r.choice([1, 3, 3, 3])
            return "call", self.module(nn.Conv2d(c, out, kernel, r.choice([1, 1, 2]), kernel // 2, groups=groups, bias=r.random() < 0.7))
        if kind == "norm" and h * w > 1:
            groups = r.choice([g for g in range(1, c + 1) if c % g == 0])
            return "call", self.module(r.choice([nn.GroupNorm(groups, c), nn.BatchNorm2d(c), nn.InstanceNorm2d(c)]))
        if kind == "pool" and min(h, w) >= 4:
            return "call", self.module(r.choice([nn.MaxPool2d(2), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d((h // 2 + 1, w // 2))]))
        if kind == "up" and 4 * h * w <= MOST_PIXELS:
            return "up", 2
        if kind == "pad" and h * w <= MOST_PIXELS:
            return "pad", (r.randint(0, 2), r.randint(0, 1), r.randint(-1, 1), 1)
        if kind == "cut" and c > 1:
            return "cut", (r.randint(0, c // 2 - 1), r.randint(c // 2, c))
        if kind == "gate" and c % 2 == 0:
            return "gate", None
        if kind == "turn":
            return "turn", self.module(nn.LayerNorm(c))
        if kind == "cat" and joined:
            return "cat", r.sample(joined, min(len(joined), r.randint(1, 2)))
        if kind == "add":
            return "add", r.choice(alike) if alike else 0
        return "call", self.module(r.choice(ACTIVATIONS)())

    def apply_step(self, step, x, seen):
        kind, with_ = step
        if kind == "call":
            return self.modules_[with_](x)
        if kind == "up":
            return F.interpolate(x, scale_factor=with_)
        if kind == "pad":
            return F.pad(x, with_)
        if kind == "cut":
            return x[:, with_[0] : with_[1]] * 2
        if kind == "gate":
            a, b = x.chunk(2, 1)
            return a * b.sigmoid()
        if kind == "turn":
            return self.modules_[with_](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if kind == "cat":
            fit = [seen[i] for i in with_ if seen[i].shape[2:] == x.shape[2:]]
            return torch.cat([x, *fit], 1) if sum(s.shape[1] for s in fit) + x.shape[1] <= 2 * MOST_CHANNELS else x * 0.5
        return x + seen[with_] if seen[with_].shape == x.shape else x + 1

    def forward(self, x):
        seen = [x]
        for step in self.plan:
            x = self.apply_step(step, x, seen)
            seen.append(x)
        return x


def draw(seed):
    torch.manual_seed(seed)
    network = Network(random.Random(seed)).eval()
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    return network, torch.randn(network.shape)


@pytest.mark.parametrize("part", range(4))
def test_random_networks(part):
    """A failure names the seed: draw(seed) makes the network again."""
    for seed in range(part, int(os.environ.get("CONVOY_NETWORKS", "40")), 4):
        network, x = draw(seed)
        fast = convoy.compile(copy.deepcopy(network), regions="all")
        try:
            with torch.no_grad():
                once = assert_agrees(fast, network, x)
                assert torch.equal(once.nan_to_num(), fast(x).nan_to_num())
            assert not kept(fast)
        except Exception as error:
            raise AssertionError(f"network {seed}: {network.plan}") from error
