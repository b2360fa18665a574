"""Running a region: its plan, its workspaces, and its gradients.

A slot is what one call needs for itself: a workspace and the array of buffers that run() is handed, with everything
filled in that does not change. Calls that overlap, from several threads or streams, use different slots.
"""

import ctypes as C
import functools

import torch

from . import binding as b
from .binding import lib
from .engine import ConvoyError, Plan
from .memory import allocator, contiguous
from .training import saving_is_watched

COMPARED = 1 << 16  # bytes of a parameter that are compared with what they were

_libc = C.CDLL(None)
_libc.memcmp.restype, _libc.memcmp.argtypes = C.c_int, [C.c_void_p, C.c_void_p, C.c_size_t]
_run = lib.cvy_plan_run


def strides_of(shape, stride):
    """NULL for a contiguous tensor, else an array; dimensions of one element may have any stride."""
    usual = contiguous(shape)
    if all(s == u or n <= 1 for n, s, u in zip(shape, stride, usual)):
        return None
    return (C.c_int64 * len(shape))(*stride)


class Stale(Exception):
    """A parameter has another dtype, device or layout than the plan was made for."""


class Param:
    """A parameter as the last run prepared it. Changes show in its version or its address; on the CPU its bytes are
    compared too, since `parameter.data` changes without a new version. Of large ones that is the beginning."""

    __slots__ = ("entry", "index", "kind", "pointer", "version", "bytes", "copy")

    def __init__(self, entry, index, tensor, kind):
        self.entry, self.index, self.kind = entry, index, kind
        self.pointer = self.version = self.copy = None
        # Of a tensor with gaps or repetitions only the first element is surely there.
        dense = tensor.numel() if tensor.is_contiguous() else min(tensor.numel(), 1)
        self.bytes = min(4 * dense, COMPARED) if tensor.device.type == "cpu" else 0

    def changed(self, tensor):
        pointer = tensor.data_ptr()
        try:
            version = tensor._version
        except RuntimeError:  # an inference tensor does not count its changes
            version = None
        if version != self.version or pointer != self.pointer or version is None:
            if (tensor.shape, tensor.stride(), tensor.dtype, tensor.device) != self.kind:
                raise Stale
            self.entry.data, self.pointer, self.version = pointer, pointer, version
        elif not self.bytes or not _libc.memcmp(self.copy, pointer, self.bytes):
            return False
        self.copy = C.string_at(pointer, self.bytes) if self.bytes else None
        return True


def stream_reader(device):
    """A function that tells the current stream's handle. PyTorch's short way there (0.1 µs) has no public name, so it
    may be missing; the public one makes an object for each answer (2 µs)."""
    if device.type == "cpu":
        return lambda: None
    short = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if short is None:
        return lambda: torch.cuda.current_stream(device).cuda_stream
    return functools.partial(short, device.index)


def capturing(device):
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


class Slot:
    def __init__(self, runner, tensors):
        self.memory = torch.empty(runner.plan.workspace + b.CVY_ALIGN, dtype=torch.uint8, device=runner.device)
        self.workspace = -(-self.memory.data_ptr() // b.CVY_ALIGN) * b.CVY_ALIGN
        self.workspace_size = self.memory.data_ptr() + self.memory.numel() - self.workspace
        order, sources, outputs = runner.program.order(), runner.sources, runner.outputs
        self.buffers = (b.cvy_buffer * (len(order) + len(outputs)))()
        self.inputs, self.params, self.prepared = [], [], False
        for position, i in enumerate(order):
            shape, stride = sources[i]
            entry = self.buffers[position]
            entry.strides = strides_of(shape, stride)
            if runner.program.params[i]:
                kind = (shape, stride, torch.float32, runner.device)
                self.params.append(Param(entry, i, tensors[i], kind))
            else:
                self.inputs.append((entry, i, stride))
        self.outputs = []
        for position, (shape, stride) in enumerate(outputs, len(order)):
            entry = self.buffers[position]
            entry.strides = strides_of(shape, stride)
            self.outputs.append((entry, allocator(shape, stride, runner.device)))


class Runner:
    """One region for one set of shapes and strides on one device."""

    def __init__(self, program, sources, outputs, device, settings):
        """sources, outputs: (shape, stride) of each."""
        self.program, self.sources, self.outputs, self.device = program, sources, outputs, device
        self.graph = program.build([shape for shape, _ in sources])
        # On the GPU a plan for any strides and addresses keeps room for copies; most tensors need none.
        dense = device.type == "cuda" and not any(strides_of(*d) for d in (*sources, *outputs))
        strided = b.CVY_OFF if dense else b.CVY_DEFAULT
        self.misaligned = 15 if dense else 0  # bits of an address that must be 0
        self.plan = Plan(self.graph, strided=strided, **settings.options(device))
        self.training, self.trained = settings.training, False
        self.slots = {}  # by stream
        self.stream = stream_reader(device)
        self.__name__ = self.__qualname__ = "convoy_region"  # fx writes code that calls this object by its name
        self.n_buffers = len(sources) + len(outputs)

    def __call__(self, *tensors):
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return Fused.apply(self, *tensors) if self.recomputes() else self.program.evaluate(tensors)
        return self.run(tensors)

    def recomputes(self):
        """Where gradients are needed: does Convoy compute the region now, and PyTorch again in backward?"""
        if self.training == "auto":
            return not self.trained and not saving_is_watched()
        return self.training == "recompute"

    def run(self, tensors):
        """On the device's current stream. Which device is current does not matter: everything names its own."""
        stream = self.stream()
        free = self.slots.get(stream)
        if free is None:
            free = self.slots[stream] = []
        try:
            slot = free.pop()
        except IndexError:
            slot = Slot(self, tensors)
        flags = b.CVY_KEEP_PREPARED if slot.prepared else 0
        for param in slot.params:
            if param.changed(tensors[param.index]):
                flags = 0
                if param.pointer & self.misaligned:
                    return self.run_restrided(slot, tensors, free)
        for entry, index, stride in slot.inputs:
            tensor = tensors[index]
            entry.data = pointer = tensor.data_ptr()
            if pointer & self.misaligned or tensor.stride() != stride:
                return self.run_restrided(slot, tensors, free)
        results = []
        for entry, make in slot.outputs:
            result = make()
            entry.data = result.data_ptr()
            results.append(result)
        status = _run(self.plan.handle, slot.buffers, self.n_buffers, slot.workspace, slot.workspace_size, flags,
                      stream)
        if not flags or status:
            # A captured run has prepared nothing yet: its graph does that whenever it is replayed.
            slot.prepared = not status and not (stream and capturing(self.device))
        free.append(slot)
        if status:
            raise ConvoyError(status)
        return results

    def run_restrided(self, slot, tensors, free):
        """An operator of PyTorch laid its result out otherwise than it had announced, or a tensor begins in the middle
        of another one."""
        slot.prepared = False
        for param in slot.params:
            param.version = None  # nothing was run with what it is now
        free.append(slot)
        copies = [restride(t, shape, stride) if t.stride() != stride or t.data_ptr() & self.misaligned
                  else t.as_strided(shape, stride) for t, (shape, stride) in zip(tensors, self.sources)]
        return self.run(copies)

    def refresh(self):
        for slots in list(self.slots.values()):
            for slot in list(slots):
                slot.prepared = False


def restride(tensor, shape, stride):
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class Fused(torch.autograd.Function):
    """Forward by Convoy; backward computes the region again, by PyTorch, and differentiates that."""

    @staticmethod
    def forward(ctx, runner, *tensors):
        ctx.runner = runner
        ctx.save_for_backward(*tensors)
        return tuple(runner.run(tensors))

    @staticmethod
    def backward(ctx, *grads):
        tensors = ctx.saved_tensors
        ctx.runner.trained = True
        return None, *gradients(ctx.runner.program, tensors, ctx.needs_input_grad[1:], grads)


def gradients(program, tensors, needed, grads):
    """Gradients of the needed tensors, None for the others; differentiable where that is asked for."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views of their own, since the same tensor may be there twice.
        leaves = [(t.view_as(t) if again else t.detach().requires_grad_()) if n else t.detach()
                  for t, n in zip(tensors, needed)]
        outputs = program.evaluate(leaves)
        pairs = [(o, g) for o, g in zip(outputs, grads) if g is not None and o.requires_grad]
        wanted = [leaf for leaf, n in zip(leaves, needed) if n]
        found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=again,
                                         allow_unused=True) if pairs else [None] * len(wanted))
    return [next(found) if n else None for n in needed]
