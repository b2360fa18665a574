"""Running a region: its plan, its workspaces, and its gradients.

A slot is what one call needs for itself: the array of buffers that run() is handed, with everything filled in that does
not change. Calls that overlap, from several threads or streams, use different slots. What was derived from parameters
is shared (prepared.py), and so is the workspace: on the CPU by all runs of a thread, on the GPU by PyTorch's allocator.
"""

import ctypes as C
import functools

import torch

from . import binding as b
from .binding import lib
from .engine import ConvoyError, Plan
from .memory import allocator, contiguous, scratch
from .prepared import STORE, TICKS
from .training import saving_is_watched

OWN_WORKSPACE = 256 << 10  # bytes up to which a slot on the GPU keeps a workspace to itself

_run = lib.cvy_plan_run_in


def strides_of(shape, stride):
    """NULL for a contiguous tensor, else an array; dimensions of one element may have any stride."""
    usual = contiguous(shape)
    if all(s == u or n <= 1 for n, s, u in zip(shape, stride, usual)):
        return None
    return (C.c_int64 * len(shape))(*stride)


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


def aligned(address):
    return -(-address // b.CVY_ALIGN) * b.CVY_ALIGN


class Slot:
    def __init__(self, runner, tensors, stream):
        order, sources, outputs = runner.program.order(), runner.sources, runner.outputs
        self.buffers = (b.cvy_buffer * (len(order) + len(outputs)))()
        self.inputs, self.params, kinds = [], [], []
        for position, i in enumerate(order):
            shape, stride = sources[i]
            entry = self.buffers[position]
            entry.strides = strides_of(shape, stride)
            if runner.program.params[i]:
                self.params.append((entry, i))
                kinds.append((shape, stride, torch.float32, runner.device))
            else:
                self.inputs.append((entry, i, stride))
        self.outputs = []
        for position, (shape, stride) in enumerate(outputs, len(order)):
            entry = self.buffers[position]
            entry.strides = strides_of(shape, stride)
            self.outputs.append((entry, allocator(shape, stride, runner.device)))
        self.prepared = STORE.find(runner.plan, [tensors[i] for _, i in self.params], kinds, stream,
                                   runner.device)
        self.generation = None  # of prepared, when addresses of parameters were written into buffers
        self.memory = b.cvy_memory(size=C.sizeof(b.cvy_memory), prepared_size=runner.plan.prepared)
        self.workspace = workspace_of(runner.plan.scratch, runner.device)
        self.owns = runner.device.type == "cuda" and runner.plan.scratch <= OWN_WORKSPACE
        self.kept = False  # the workspace is as the plan's last run left it


def workspace_of(size, device):
    """A function that gives (address, owner) of a workspace for one run, and one that takes it back, or None."""
    if device.type == "cpu":
        return scratch(size)
    if size <= OWN_WORKSPACE:
        memory = torch.empty(size + b.CVY_ALIGN, dtype=torch.uint8, device=device)
        place = aligned(memory.data_ptr()), memory
        return lambda: place, None

    def fresh():
        memory = torch.empty(size + b.CVY_ALIGN, dtype=torch.uint8, device=device)
        return aligned(memory.data_ptr()), memory

    return fresh, None


class Runner:
    """One region for one set of shapes and strides on one device."""

    def __init__(self, program, sources, outputs, device, settings):
        """sources, outputs: (shape, stride) of each."""
        self.program, self.sources, self.outputs, self.device = program, sources, outputs, device
        self.graph = program.build([shape for shape, _ in sources])
        # A plan for any strides and addresses keeps room for copies; most tensors need none.
        dense = not any(strides_of(*d) for d in (*sources, *outputs))
        strided = b.CVY_OFF if dense else b.CVY_DEFAULT
        self.misaligned = 15 if dense and device.type == "cuda" else 0  # bits of an address that must be 0
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
            slot = Slot(self, tensors, stream)
        for entry, index, stride in slot.inputs:
            tensor = tensors[index]
            entry.data = pointer = tensor.data_ptr()
            if pointer & self.misaligned or tensor.stride() != stride:
                return self.run_restrided(slot, tensors, free)
        params = [tensors[index] for _, index in slot.params]
        prepared = slot.prepared
        memory = prepared.ready(params)  # stays while this runs, whoever drops it meanwhile
        if memory is not None:
            results = self.launch(slot, params, memory, b.CVY_KEEP_PREPARED, stream)
        else:
            if self.misaligned and any(p.data_ptr() & self.misaligned for p in params):
                return self.run_restrided(slot, tensors, free)
            with prepared.lock:
                memory = prepared.ready(params)  # by another thread
                done = memory is not None
                if not done:
                    memory = prepared.take(params)
                results = self.launch(slot, params, memory, b.CVY_KEEP_PREPARED if done else 0, stream)
                # A captured run has prepared nothing yet: its graph does that whenever it is replayed.
                prepared.valid = prepared.memory is memory and (done or not (stream and capturing(self.device)))
        free.append(slot)
        return results

    def launch(self, slot, params, memory, flags, stream):
        """One run of the plan."""
        prepared = slot.prepared
        if slot.generation != prepared.generation:
            for (entry, _), tensor in zip(slot.params, params):
                entry.data = tensor.data_ptr()
            slot.generation = prepared.generation
        results = []
        for entry, make in slot.outputs:
            result = make()
            entry.data = result.data_ptr()
            results.append(result)
        take, give_back = slot.workspace
        address, owner = take()
        given = slot.memory
        given.prepared = aligned(memory.data_ptr()) if prepared.size else None
        given.workspace, given.workspace_size = address, self.plan.scratch
        status = _run(self.plan.handle, slot.buffers, self.n_buffers, C.byref(given),
                      flags | (b.CVY_KEEP_WORKSPACE if slot.kept else 0), stream)
        if give_back is not None:
            give_back(owner)
        if status:
            raise ConvoyError(status)
        if slot.owns and not slot.kept:
            slot.kept = not capturing(self.device)
        prepared.used = next(TICKS)
        return results

    def run_restrided(self, slot, tensors, free):
        """An operator of PyTorch laid its result out otherwise than it had announced, or a tensor begins in the middle
        of another one."""
        free.append(slot)
        copies = [restride(t, shape, stride) if t.stride() != stride or t.data_ptr() & self.misaligned
                  else t.as_strided(shape, stride) for t, (shape, stride) in zip(tensors, self.sources)]
        if any(copies[i].data_ptr() != tensors[i].data_ptr() for _, i in slot.params):
            slot.prepared.valid = False  # a copy of a parameter does not tell whether that has changed
        return self.run(copies)

    def refresh(self):
        for slots in list(self.slots.values()):
            for slot in list(slots):
                slot.prepared.valid = False


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
