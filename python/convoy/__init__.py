"""Convoy: fuses convolutions with the operators that follow them, so data crosses memory as few times as possible.

    import convoy
    fast = convoy.compile(model)         # the same module, faster
    print(convoy.explain(model, x))      # what runs where, and why

Importing this package does not import PyTorch; the functions that need it do. `torch.compile(model, backend="convoy")`
works as soon as the package is installed.
"""

from .binding import CVY_VERSION as __version__
from .engine import ConvoyError, operators

__all__ = ["ConvoyError", "compile", "explain", "operators", "refresh", "warm"]


def compile(module, precision="fp32", **options):
    """The same module, faster. See doc/PYTORCH.md.

    precision  "fp32"; "tf32", tensor cores with one product; "torch", what PyTorch's own flags allow
    winograd   False forbids Winograd convolutions
    effort     "measure" times the best few plans instead of trusting the cost model
    threads    CPU threads; default PyTorch's own number
    graphs     True: calls without gradients on a GPU are recorded as CUDA graphs, one for every shape, and replayed
    regions    "faster": only what is predicted to be faster than PyTorch; "all": everything that Convoy can compute
    training   regions that need gradients: "eager", by PyTorch; "recompute", by Convoy, saving only their inputs;
               "auto", by Convoy until a backward comes, from then on by PyTorch
    """
    from .module import compile_module

    return compile_module(module, precision=precision, **options)


def explain(module, *inputs, **keywords):
    """Shows which operators of a module run in which pass, and which stay in PyTorch and why: print the result."""
    from .explanation import explain_module

    return explain_module(module, inputs, keywords)


def refresh(module):
    """Drops everything derived from parameters: call it after changes through `parameter.data`, which PyTorch does not track."""
    from .module import refresh_module

    refresh_module(module)


def warm(module, shapes):
    """Prepares a compiled module for calls with these shapes: plans, kernels, weights. Each is a shape, a tensor, or a list of
    those if the module takes several. The module is called once for each, without gradients, and does not change."""
    from .warming import warm_module

    warm_module(module, shapes)
