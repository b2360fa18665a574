"""A network with something of everything, and an input of its: the fixture `net` of conftest.py makes one."""

import torch
import torch.nn.functional as F
from torch import nn

X = torch.randn(2, 3, 9, 7, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """Something of everything."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)
        self.gain = 1.5

    def forward(self, x):
        x = F.relu(self.bn(self.conv(x))) * self.gain
        x = self.drop(x)
        return self.head(x.mean((2, 3)))
