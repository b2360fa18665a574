"""What a forward does to tensors besides calling operators.

A trace records only operators. Attributes of tensors, hooks, derivatives and errors that the forward catches are not operators, so
a captured graph would leave them out silently. While the forward is traced, a mode therefore sees every call of a PyTorch function
and finds what cannot be captured. Such a module stays in PyTorch, with the reason.
"""

import torch
from torch import _C as native
from torch.overrides import TorchFunctionMode

from .reasons import Changed

Tensor = torch.Tensor

REASONS = {
    Tensor.data.__set__: "assigns to the data of a tensor",
    Tensor.requires_grad.__set__: "sets requires_grad of a tensor",
    Tensor.requires_grad_: "sets requires_grad of a tensor",
    Tensor.grad.__get__: "reads a gradient",
    Tensor.grad.__set__: "sets a gradient",
    Tensor.grad_fn.__get__: "looks at how a tensor was made",
    Tensor.is_leaf.__get__: "looks at how a tensor was made",
    Tensor.register_hook: "registers a hook of a tensor",
    Tensor.register_post_accumulate_grad_hook: "registers a hook of a tensor",
    Tensor.retain_grad: "keeps a gradient",
    Tensor.backward: "computes gradients",
    torch.autograd.backward: "computes gradients",
    torch.autograd.grad: "computes gradients",
}


class Attended(TorchFunctionMode):
    """asked: did the forward read requires_grad, on which it may depend?"""

    def __init__(self):
        super().__init__()
        self.asked, self.found = False, None
        self.seed, self.grad = None, None  # of random numbers; whether the trace expects gradients to be enabled

    def __enter__(self):
        self.seed, self.grad = torch.default_generator.initial_seed(), torch.is_grad_enabled()
        return super().__enter__()

    def unwritten(self, function):
        """Why the trace does not record a call, or something before it; None if it records everything."""
        if function in REASONS:
            return REASONS[function]
        if torch.default_generator.initial_seed() != self.seed:
            return "sets a seed of PyTorch's random numbers"
        if native._functorch.peek_interpreter_stack() is not None:
            return "uses a transform of torch.func"
        if torch.is_grad_enabled() != self.grad:  # PyTorch switched it, inside an autograd.Function
            return "enters inference mode" if torch.is_inference_mode_enabled() else "has a derivative of its own"
        return None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function == Tensor.data.__get__:
            return args[0].detach()
        self.asked |= function == Tensor.requires_grad.__get__
        try:
            if (what := self.unwritten(function)) is not None:
                raise Changed(f"its forward {what}")
            result = function(*args, **(kwargs or {}))
        except Exception as error:  # the forward may catch it, and do what it would not do on real tensors
            self.found = self.found or error
            raise
        self.grad = args[0] if function is native._set_grad_enabled else self.grad
        return result

    def judge(self, outputs):
        """After the forward: raises the first thing it did that cannot be captured. outputs: its tensors."""
        if self.found is not None:
            raise self.found
        if any(map(has_own_derivative, outputs)):
            raise Changed("its forward has a derivative of its own")


def has_own_derivative(output):
    """Was an autograd.Function used to compute the output?"""
    waiting, seen = [getattr(output, "grad_fn", None)], {None}
    while waiting:
        made = waiting.pop()
        if isinstance(made, native._FunctionBase):
            return True
        if made not in seen:
            seen.add(made)
            waiting += [before for before, _ in made.next_functions]
    return False
