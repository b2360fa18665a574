"""Compiled modules under torch.export: the captured graph with regions as operators `convoy::program`."""

import contextlib

import torch
from torch import _C as native
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from .building import stateless
from .capture import capture
from .ops import inserter
from .state import State


@contextlib.contextmanager
def unseen():
    """Hides a trace from the one around it, which would record where the forward switches gradients or autocast."""
    modes = [native._pop_torch_function_stack() for _ in range(native._len_torch_function_stack())]
    try:
        with _disable_current_modes():
            yield
    finally:
        for mode in reversed(modes):
            native._push_on_torch_function_stack(mode)


def portable(module, forward, args, kwargs, settings):
    """Runs a call through a graph of ATen and Convoy operators, all visible to the tracer."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    constants = [None if i in where else leaf for i, leaf in enumerate(leaves)]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = [leaves[i] for i in where]
    device = next((t.device for t in [*tensors, *state.values()]), torch.device("cpu"))
    with _disable_current_modes(), torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        params, given = [unwatched(t) for t in state.values()], [unwatched(t) for t in tensors]
    try:
        run = stateless(module, forward, State(module), list(state.values()), (spec, constants, where))
        with unseen():
            found = capture(run, params, given, device, lambda region: (inserter(region, settings), None), mode="real")
    except Exception:  # torch.export decides what to do with such a module
        return forward(module, *args, **kwargs)
    if any(node.target is enter_autocast for node in found.graph.graph.nodes):  # where it would convert a region's arguments again
        return forward(module, *args, **kwargs)
    return pytree.tree_unflatten(found.graph(*state.values(), *tensors), found.out_spec)


def unwatched(tensor):
    """A fake tensor of the same kind that is not being traced."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.requires_grad_(tensor.requires_grad)
