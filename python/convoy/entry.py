"""What a compiled module knows of the calls of one set of shapes."""

import torch

from .training import gradients_everywhere


class Entry:
    """A captured call, or the reason why there is none. It is valid while the module's state is unchanged."""

    def __init__(self, state=None):
        self.state, self.reason, self.served = state, None, 0
        self.params, self.loose, self.hooks = [], [], []
        self.doubts = []  # of its regions: something came otherwise than it was traced
        self.capture, self.runners, self.verdicts, self.invoke = None, [], [], None
        self.fixed, self.whole = [], None  # the first placeholders; only_region() where a lane may run it
        self.replays = []  # of the call, where CUDA graphs are wanted (replay.py)
        self.names = ()  # attributes of tensors that the forward looked for in vain
        self.asked = None  # wanted() of the traced call, if the forward depends on it
        self.leaves = []  # per region: the placeholders that it depends on (training.py)

    def holds(self):
        return not self.doubts and (self.state is None or self.state.unchanged())

    def wanted(self, tensors):
        """Of everything that the call reads: requires_grad, and which of `names` are there. tensors: those after the parameters."""
        read = *self.params, *self.loose, *tensors
        return *(t.requires_grad for t in read), *(name in vars(t) for name in self.names for t in read)

    def left_to_autograd(self, tensors):
        """Does every region need gradients, and does PyTorch then compute each? tensors: those after the parameters."""
        if not torch.is_grad_enabled() or any(runner.recomputes() for runner in self.runners):
            return False
        return gradients_everywhere(self.leaves, [*self.params, *self.loose, *tensors])
