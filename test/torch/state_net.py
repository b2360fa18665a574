"""What the tests of a module's state share: a small network, its input, and how a compiled one is judged."""

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import convoy

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def near(got, want):
    for g, w in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)


def last(fast):
    return list(fast._convoy.entries.values())[-1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3), nn.Tanh()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.act(self.conv(x)) * 2


def last_reason(model):
    """The reason that a capture gives, without a call."""
    from convoy.building import build_entry

    entry = build_entry(convoy.compile(model), type(model).forward, [X], None, convoy.module.Settings())
    return entry.reason
