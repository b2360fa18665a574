"""Convoy: fuses convolutions with the operators that follow them, so data crosses memory as few times as possible.

    import convoy
    fast = convoy.compile(model)         # the same model, fused
    print(convoy.explain(model, x))      # what runs where, and why

Importing this package does not import PyTorch; the functions that need it do. `torch.compile(model, backend="convoy")`
works as soon as the package is installed.
"""

from .binding import CVY_VERSION as __version__
from .engine import ConvoyError, operators

__all__ = ["ConvoyError", "compile", "explain", "operators", "refresh", "warm"]


def compile(module, precision="fp32", **options):
    """Returns a drop-in replacement of a module that runs what it can through Convoy. See doc/PYTORCH.md.

    precision  "fp32"; "tf32": one product on tensor cores; "torch": what PyTorch's own tf32 flags allow
    winograd   False forbids Winograd convolutions
    effort     "estimate" trusts the cost model; "measure" times the best few plans
    threads    CPU threads; default: PyTorch's number
    graphs     True: calls without gradients on a GPU are recorded as CUDA graphs, one per shape, and replayed
    regions    "faster": only regions predicted to be faster than PyTorch; "all": everything that Convoy supports
    training   who computes regions that need gradients. "eager": PyTorch; "recompute": Convoy, which keeps only their
               inputs; "auto": Convoy until the first backward, then PyTorch
    """
    from .module import compile_module

    return compile_module(module, precision=precision, **options)


def explain(module, *inputs, **keywords):
    """Says which operators of a module run in which pass, which stay in PyTorch, and why. Print the result."""
    from .explanation import explain_module

    return explain_module(module, inputs, keywords)


def refresh(module):
    """Drops everything derived from parameters. Call it after changes through `parameter.data`, which PyTorch does not track."""
    from .module import refresh_module

    refresh_module(module)


def warm(module, shapes):
    """Prepares a compiled module for calls with these shapes: plans, kernels, weights. Each item is a shape, a tensor, or a list
    of these if the module takes several. The module is called once per item, without gradients, and does not change."""
    from .warming import warm_module

    warm_module(module, shapes)
