"""What a forward does to tensors besides calling operators.

A trace records only operators. Attributes of tensors, hooks, derivatives and errors that the forward catches are not operators, so
a captured graph would leave them out silently. While the forward is traced, a mode therefore sees every call of a PyTorch function
and finds what cannot be captured. Such a module stays in PyTorch, with the reason.
"""

import functools

import torch
import torch.nn.functional as F
from torch import _C as native
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from .leaks import Made
from .random_numbers import numbers_of_pytorch
from .reasons import Changed
from .short_norms import short_norm
from .training import saving_hooks

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


SEEDED = "sets a seed or a state of PyTorch's random numbers"


class Attended(TorchFunctionMode):
    """asked: did the forward read requires_grad, on which it may depend? names: attributes that it looked for and that the
    placeholders of `given` have not."""

    def __init__(self):
        super().__init__()
        self.asked, self.found = False, None
        self.given, self.names = [], set()
        self.grad, self.saving = None, None  # whether the trace expects gradients to be enabled; hooks on what autograd saves
        self.generators = []  # those that the module and the call hold
        self.made = Made()
        self.fast = False  # may PyTorch's attention take its fast path now?

    def __enter__(self):
        self.grad, self.saving = torch.is_grad_enabled(), saving_hooks()
        self.sources = numbers_of_pytorch()
        self.states = [source.get_state() for source in self.sources]
        self.seed = torch.default_generator.initial_seed()
        self.reseed()
        self.has_torch_function = torch.overrides.has_torch_function
        torch.overrides.has_torch_function = self.overridden
        FakeTensor.__getattr__ = lambda tensor, name: self.missing(tensor, name)
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        torch.overrides.has_torch_function = self.has_torch_function
        del FakeTensor.__getattr__
        self.given = []
        if self.found is None and error[0] is None and self.reseeded():
            self.found = Changed(f"its forward {SEEDED}")
        for source, state in zip(self.sources, self.states):
            source.set_state(state)

    def overridden(self, tensors):
        """PyTorch's attention asks this before it takes its fast path, whose operators are not in the vocabulary. With this
        mode the answer is yes, and the operators of the slow path are recorded. Both give the same unless there is a mask."""
        self.fast = not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors if isinstance(t, Tensor)))
        return self.has_torch_function(tensors)

    def missing(self, tensor, name):
        """Python asks this for an attribute that a placeholder has not; its tensor may have it in another call."""
        if name[0] != "_" and any(tensor is t for t in self.given):
            self.names.add(name)
        raise AttributeError(f"'Tensor' object has no attribute '{name}'")

    def masked(self, function, kwargs):
        if function is not F.multi_head_attention_forward:
            return False
        fast, self.fast = self.fast, False
        return fast and kwargs.get("key_padding_mask") is not None

    def reseed(self):
        """Draws of a trace change no generator. With another seed before every call, a state that is set is detected, even if
        it is one that was read before."""
        self.seed += 1
        for source in self.sources:
            source.manual_seed(self.seed)

    def reseeded(self):
        return any(source.initial_seed() != self.seed for source in self.sources)

    def strange(self, value):
        """Is it a generator that neither the module nor the call holds? The graph would keep the one of the trace."""
        return isinstance(value, torch.Generator) and not any(value is g for g in (*self.generators, *self.sources))

    def unwritten(self, function, args, kwargs):
        """Why the trace does not record a call, or something before it; None if it records everything."""
        if function in REASONS:
            return REASONS[function]
        if self.reseeded():
            return SEEDED
        if any(map(self.strange, (*args, *kwargs.values()))):
            return "makes a generator of random numbers"
        if native._functorch.peek_interpreter_stack() is not None:
            return "uses a transform of torch.func"
        if forward_ad._current_level >= 0:
            return "uses forward-mode AD"
        if self.masked(function, kwargs):
            return "takes PyTorch's fast path of attention, which leaves out what is masked"
        if torch.is_grad_enabled() != self.grad:  # PyTorch switched it, inside an autograd.Function
            return "enters inference mode" if torch.is_inference_mode_enabled() else "has a derivative of its own"
        if self.grad and saving_hooks() not in (None, self.saving) and not saving_hooks()[0].__module__.startswith("torch."):
            return "changes what autograd saves"  # PyTorch's own hooks only keep it elsewhere
        return None

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function == Tensor.data.__get__:
            return args[0].detach()
        self.asked |= function == Tensor.requires_grad.__get__
        try:
            if (what := self.unwritten(function, args, kwargs)) is not None:
                raise Changed(f"its forward {what}")
            self.reseed()
            result = short_norm(*args, **kwargs) if function is F.batch_norm else None
            if result is None:
                result = function(*args, **kwargs)
        except Exception as error:  # the forward may catch it, and do what it would not do on real tensors
            self.found = self.found or error
            raise
        self.made.note(result)
        self.grad = args[0] if function is native._set_grad_enabled else self.grad
        return result

    def judge(self, outputs, given):
        """After the forward: raises the first thing it did that cannot be captured. outputs: its tensors. given: those it got."""
        found, self.found = self.found, None
        if found is not None:
            try:
                raise found
            finally:
                del found  # its traceback would keep this frame, and with it the trace's tensors
        if any(has_attributes(t) for t in outputs if not any(t is g for g in given)):
            raise Changed("its forward sets an attribute of a tensor that it returns")
        if any(map(has_own_derivative, outputs)):
            raise Changed("its forward has a derivative of its own")


def has_attributes(output):
    """Has it any that PyTorch does not give to every placeholder?"""
    return isinstance(output, FakeTensor) and any(k[0] != "_" for k in vars(output).keys() - placeholder_attributes())


@functools.cache
def placeholder_attributes():
    with _disable_current_modes(), FakeTensorMode():
        return frozenset(vars(torch.empty(0)))


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
