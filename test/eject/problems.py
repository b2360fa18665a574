"""Small problem files that between them use every kind of launch, and PyTorch's operators between regions."""

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
FOLD = HEAD + '''
class Model(nn.Module):
    """Block A, fewer samples: one pass on tensor cores, results wait in shared memory."""

    def __init__(self, channels, groups=16, *, pool=4):
        super().__init__()
        self.conv = nn.Conv2d(8, channels, 3)
        self.norm = nn.GroupNorm(groups, channels)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.pool = nn.MaxPool2d(pool)

    def forward(self, x):
        return torch.clamp(self.pool(self.norm(self.conv(x)) * self.scale), 0, 1)


def get_inputs():
    return [torch.rand(16, 8, 128, 128)]


def get_init_inputs():
    return [64]


if __name__ == "__main__":
    raise SystemExit("not in the new file")
'''
BOTH = HEAD + '''
import convoy

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 64, 3), nn.Conv2d(64, 32, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(16, 64), nn.GroupNorm(8, 32)])

    def forward(self, x):
        y = self.a(x)
        y = y + F.hardswish(torch.tanh(self.norms[0](F.relu(y))))
        return self.norms[1](torch.sigmoid(self.b(y)))

class ModelNew(nn.Module):
    def __new__(cls):
        return convoy.compile(Model())

def get_inputs(): return [torch.rand(8, 8, 64, 64)]
def get_init_inputs(): return []
'''
GENERIC = HEAD + '''
class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.conv = nn.Conv3d(3, k, 3, padding=1)
        self.norm = nn.BatchNorm3d(k)
        self.up = nn.ConvTranspose3d(k, 4, 2, stride=2, groups=2)
        self.out = nn.Sequential(nn.Flatten(1), nn.Linear(4 * 8 * 10 * 12, 9), nn.LayerNorm(9), nn.Linear(9, 5))

    def forward(self, x):
        x = F.avg_pool3d(F.gelu(self.norm(self.conv(x))), 1)
        return self.out(torch.tanh(self.up(x))).softmax(1)

def get_inputs(): return [torch.rand(3, 3, 4, 5, 6)]
def get_init_inputs(): return [6]
'''
STRIDED = HEAD + '''
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(5, 6, 3).to(memory_format=torch.channels_last)
        self.late = nn.Conv2d(8, 64, 3)

    def forward(self, x, y):
        return torch.relu(self.conv(x)), F.relu(self.late(y)).mean((2, 3))

def get_inputs():
    return [torch.rand(2, 5, 9, 7).to(memory_format=torch.channels_last), torch.rand(4, 8, 64, 64).transpose(2, 3)]
def get_init_inputs(): return []
'''
MIXED = HEAD + '''
class Model(nn.Module):
    """Regions with PyTorch's operators between, arguments that are no tensors, a nest of results."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(32, 4, 1)
        self.norm = nn.GroupNorm(4, 16)
        self.register_buffer("shift", torch.full((4, 1, 1), 0.5))

    def forward(self, x, times, mask, mode=None):
        y = F.silu(self.norm(self.down(x)))
        low = F.interpolate(F.max_pool2d(y, 2), scale_factor=2.0, mode="bilinear")
        first, second = torch.cat([y, low], 1).flip(0).split(16, 1)
        z = F.relu(self.up(torch.cat([second, first], 1)) + self.shift) * times
        grid = torch.arange(3, device=x.device)
        return {"z": z, "rest": [torch.where(mask, z, -1.0), (grid, self.shift.cumsum(0))]}

def get_inputs(): return [torch.rand(2, 3, 8, 8), 2.5, torch.rand(2, 4, 8, 8) > 0.5, "plain"]
def get_init_inputs(): return []
'''
FEW = HEAD + '''
class Model(nn.Module):
    """Too few terms and columns for tensor cores; reductions that start from an infinity."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 8, 3), nn.Linear(8 * 10 * 7, 5)

    def forward(self, x):
        y = F.silu(self.conv(x))
        return y.amax((2, 3)), y.amin(1), self.out(y.flatten(1)).logsumexp(1)

def get_inputs(): return [torch.randn(2, 1, 12, 9)]
def get_init_inputs(): return []
'''
LAYERS = HEAD + '''
class Model(nn.Module):
    """Linear layers on tensor cores, with clusters of blocks, without, and of rows that tensor copies do not take."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.out = nn.Sequential(nn.Linear(width, 30), nn.Linear(30, 10))

    def forward(self, x):
        y = x + self.down(F.gelu(self.up(x)))
        return self.out(y.mean(1)).softmax(0)

def get_inputs(): return [torch.randn(8, 256, 512)]
def get_init_inputs(): return [512]
'''
DEEP = HEAD + '''
class Model(nn.Module):
    """Many channels: words of fp16, sums that several blocks share."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(640, 640, 3, padding=1), nn.Conv2d(640, 128, 3, padding=1)

    def forward(self, x):
        return F.silu(self.b(F.relu(self.a(x))))

def get_inputs(): return [torch.randn(2, 640, 16, 16)]
def get_init_inputs(): return []
'''
HALVES = HEAD + '''
class Model(nn.Module):
    """fp16 and bf16 side by side, a norm's parameters in float32, conversions between regions."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 64, 3, dtype=torch.bfloat16), nn.GroupNorm(16, 64)
        self.out = nn.Linear(64, 24, dtype=torch.float16)

    def forward(self, x):
        y = self.norm(self.conv(x)).relu().mean((2, 3)).to(torch.float16)
        return F.silu(self.out(y))

def get_inputs(): return [torch.rand(4, 16, 32, 32, dtype=torch.bfloat16)]
def get_init_inputs(): return []
'''
LAST = HEAD + '''
class Model(nn.Module):
    """Images that lie channels last: statistics, words, and a convolution that reads x itself, in two and three dimensions."""

    def __init__(self, c):
        super().__init__()
        self.norm, self.a, self.b = nn.GroupNorm(32, c), nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.deep = nn.Conv3d(c, c, 3, padding=1)
        self.to(torch.bfloat16)

    def forward(self, x, y):
        return x + self.b(F.relu(self.a(F.silu(self.norm(x))))), F.relu(self.a(x)), F.relu(self.deep(y))

def get_inputs():
    x, y = torch.randn(2, 320, 32, 32).bfloat16(), torch.randn(1, 320, 4, 16, 16).bfloat16()
    return [x.contiguous(memory_format=torch.channels_last), y.contiguous(memory_format=torch.channels_last_3d)]
def get_init_inputs(): return [320]
'''
PRODUCTS = HEAD + '''
class Model(nn.Module):
    """Products of two inputs: words of fp16 made of both, sums in parts; a transposed view."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(500))

    def forward(self, x, y, z):
        return F.relu(x @ y) * self.scale, torch.tanh(x @ z.T)

def get_inputs(): return [torch.randn(700, 1024), torch.randn(1024, 500), torch.randn(500, 1024)]
def get_init_inputs(): return []
'''
PROBLEMS = {"fold": FOLD, "both": BOTH, "generic": GENERIC, "strided": STRIDED, "mixed": MIXED, "few": FEW, "deep": DEEP,
            "layers": LAYERS, "halves": HALVES, "products": PRODUCTS, "last": LAST}  # fmt: skip
