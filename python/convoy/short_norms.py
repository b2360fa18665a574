"""Batch norms in evaluation, traced in one step.

On fake tensors PyTorch finds the shape of a batch norm's result through a dozen smaller operators, which takes as long as tracing
several other layers. A batch norm whose result is plainly like its argument is therefore traced as an operator of our own, which
says only that, and becomes PyTorch's again when the trace is complete. PyTorch traces all others.
"""

import torch
from torch import _C as native

from .memory import contiguous

LIBRARY = torch.library.Library("convoy", "FRAGMENT")
LIBRARY.define("batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
               "bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor")  # fmt: skip
LIBRARY.impl("batch_norm", lambda x, *_: torch.empty_like(x), "Meta")
SHORT, WHOLE = torch.ops.convoy.batch_norm.default, torch.ops.aten.batch_norm.default


def short_norm(x, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    """The result of F.batch_norm with these arguments, None if PyTorch has to trace it."""
    if training or torch.is_grad_enabled() or native._is_any_autocast_enabled():
        return None
    if type(momentum) is not float or type(eps) is not float or eps < 0 or not like_its_argument(x, mean, variance, weight, bias):
        return None
    return SHORT(x, weight, bias, mean, variance, training, momentum, eps, torch.backends.cudnn.enabled)


def like_its_argument(x, mean, variance, weight, bias):
    """Is the result sure to have the shape, strides and dtype of x?"""
    if mean is None or variance is None or x.dim() < 2 or not x.is_floating_point() or not x.numel():
        return False
    if x.layout is not torch.strided or x.stride() != contiguous(x.shape):
        return False
    given = [t for t in (mean, variance, weight, bias) if t is not None]
    return all(t.shape == x.shape[1:2] and t.dtype is x.dtype and t.device == x.device for t in given)


def name_whole(graph):
    """Calls PyTorch's operator again. The graph's code is written later."""
    for node in graph.nodes:
        if node.target is SHORT:
            node.target = WHOLE
