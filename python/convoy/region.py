"""Running a region: its plan, its workspaces, and its gradients.

A slot belongs to one call: the library's arguments, with everything filled in that does not change, so a call writes a few
numbers and passes one pointer (cvy_repeat). Calls that overlap, from several threads or streams, use different slots. What was
derived from parameters is shared (prepared.py), and so is the workspace: on the CPU by all runs of a thread, on the GPU through
PyTorch's allocator.
"""

import ctypes as C
import functools
import operator
import struct
from itertools import chain

import torch

from . import binding as b
from .binding import lib
from .engine import ConvoyError, Plan
from .memory import allocator, contiguous, empty, scratch
from .prepared import POINTER, STORE, TICKS, VERSION
from .training import saving_is_watched

OWN_WORKSPACE = 256 << 10  # bytes up to which a slot on the GPU keeps a workspace to itself

STRIDE, DTYPE = torch.Tensor.stride, operator.attrgetter("dtype")
_run = lib.cvy_plan_run_in
_repeat = C.CFUNCTYPE(C.c_int, C.c_void_p)(("cvy_plan_repeat", lib))  # an address is handed over faster than a struct


def strides_of(shape, stride):
    """NULL for a contiguous tensor, else an array; dimensions of one element may have any stride."""
    usual = contiguous(shape)
    if all(s == u or n <= 1 for n, s, u in zip(shape, stride, usual)):
        return None
    return (C.c_int64 * len(shape))(*stride)


def described(tensors):
    """(shape, stride, dtype) of each tensor, which a runner is made for."""
    return tuple((tuple(t.shape), tuple(t.stride()), t.dtype) for t in tensors)


def stream_reader(device):
    """A function that returns the current stream's handle. PyTorch's fast function (0.1 µs) has no public name, so it may
    be missing; the public one makes an object for each call (2 µs)."""
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
    """inputs, params: numbers of the sources in the library's order."""

    __slots__ = ("inputs", "params", "strides", "dtypes", "makers", "prepared", "buffers", "call", "write", "words",
                 "repeat", "ticket", "token", "take", "give_back", "owns", "kept")  # fmt: skip

    def __init__(self, runner, tensors, stream):
        order, sources, plan = runner.program.order(), runner.sources, runner.plan
        described = [*(sources[i] for i in order), *runner.outputs]
        self.buffers = (b.cvy_buffer * len(described))()
        for entry, (shape, stride, _) in zip(self.buffers, described):
            entry.strides = strides_of(shape, stride)
        self.inputs = [i for i in order if not runner.program.params[i]]
        self.params = [i for i in order if runner.program.params[i]]
        self.strides, self.dtypes = [sources[i][1] for i in self.inputs], [sources[i][2] for i in self.inputs]
        self.makers = [allocator(*output, runner.device) for output in runner.outputs]
        kinds = [(*sources[i], runner.device) for i in self.params]
        self.prepared = STORE.find(plan, [tensors[i] for i in self.params], kinds, stream, runner.device)
        self.take, self.give_back = workspace_of(plan.scratch, runner.device)
        self.owns = runner.device.type == "cuda" and plan.scratch <= OWN_WORKSPACE
        self.kept = False  # the workspace has not changed since the plan's last run
        self.token = None  # contents that addresses and versions of parameters were written down for
        self.describe_call(plan)

    def describe_call(self, plan):
        """The words of a call: addresses of buffers and workspace, the stream, versions of the parameters. Addresses
        and versions of parameters are watched."""
        n, m = len(self.buffers), len(self.params)
        self.call = (C.c_uint64 * (n + 2 + m))()
        self.write = struct.Struct(f"{n + 2 + m}Q").pack_into
        watched = [*range(len(self.inputs), len(self.inputs) + m), *range(n + 2, n + 2 + m)]
        self.words = (b.cvy_word * (2 * m))()
        for word, i in zip(self.words, watched):
            word.at = C.cast(C.byref(self.call, 8 * i), C.POINTER(C.c_uint64))
        self.repeat = b.cvy_repeat(size=C.sizeof(b.cvy_repeat), plan=plan.handle, buffers=self.buffers, n_buffers=n,
                                   call=self.call, words=self.words, n_words=2 * m)  # fmt: skip
        given = self.repeat.memory
        given.size, given.prepared_size, given.workspace_size = C.sizeof(given), plan.prepared, plan.scratch
        self.ticket = C.c_void_p(C.addressof(self.repeat))

    def rely_on(self, contents):
        """From now on a call is a repetition while these hold."""
        repeat = self.repeat
        for word, value in zip(self.words, chain.from_iterable(contents.seen or ())):
            word.value = value
        repeat.memory.prepared = contents.address if self.prepared.size else None
        repeat.copies, repeat.n_copies = contents.copies, len(contents.copies)
        self.token = contents.token if contents.seen else None

    def again(self, inputs, params, stream):
        """Repeats the last run on these tensors; None if something that it relied on has changed."""
        prepared = self.prepared
        contents = prepared.contents  # held during the run, even if another thread drops it
        if contents is None or contents.token is not self.token:
            return None
        results = [make() for make in self.makers]
        address, owner = self.take()
        self.write(self.call, 0, *map(POINTER, inputs), *map(POINTER, params), *map(POINTER, results), address,
                   stream or 0, *map(VERSION, params))  # fmt: skip
        status = _repeat(self.ticket)
        if self.give_back is not None:
            self.give_back(owner)
        if status:
            if status == b.CVY_STALE:
                return None
            raise ConvoyError(status)
        prepared.used = next(TICKS)
        return results


def workspace_of(size, device):
    """A function that returns (address, owner) of a workspace for one run, and one that takes it back, or None."""
    if device.type == "cpu":
        return scratch(size)
    if size <= OWN_WORKSPACE:
        memory = torch.empty(size + b.CVY_ALIGN, dtype=torch.uint8, device=device)
        place = aligned(memory.data_ptr()), memory
        return lambda: place, None

    make = empty((size + b.CVY_ALIGN,), (1,), torch.uint8, device)

    def fresh():
        memory = make()
        return aligned(memory.data_ptr()), memory

    return fresh, None


class Runner:
    """One region for one set of shapes and strides on one device."""

    def __init__(self, program, sources, outputs, device, settings, deferred=False):
        """sources, outputs: (shape, stride, dtype) of each. deferred: see engine.Plan."""
        self.program, self.sources, self.outputs, self.device = program, sources, outputs, device
        self.graph = program.build([shape for shape, _, _ in sources], [dtype for _, _, dtype in sources])
        # A plan for any strides and addresses keeps room for copies; most tensors need none.
        dense = not any(strides_of(shape, stride) for shape, stride, _ in (*sources, *outputs))
        strided = b.CVY_OFF if dense else b.CVY_DEFAULT
        self.misaligned = 15 if dense and device.type == "cuda" else 0  # bits of an address that must be 0
        self.plan = Plan(self.graph, strided=strided, deferred=deferred, **settings.options(device))
        self.training, self.trained = settings.training, False
        self.in_training = True  # is a backward likely? Not in a module's .eval()
        self.overwritten = [False] * len(sources)  # does the forward change the source in place afterwards?
        self.depends = program.depends()
        self.slots, self.doubts = {}, []  # slots by stream
        self.stream = stream_reader(device)
        self.__name__ = self.__qualname__ = "convoy_region"  # fx writes code that calls this object by its name

    def __call__(self, *tensors):
        if torch.is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return Fused.apply(self, *tensors) if self.recomputes() else self.program.evaluate(tensors)
        return self.run(tensors)

    def recomputes(self):
        """If gradients are needed: does Convoy compute the region now, and PyTorch again in the backward?"""
        if self.training == "auto":
            return not self.trained and not saving_is_watched()
        return self.training == "recompute"

    def run(self, tensors):
        """On the device's current stream. The current device does not matter: every call names its own."""
        stream = self.stream()
        free = self.slots.get(stream)
        if free is None:
            free = self.slots[stream] = []
        try:
            slot = free.pop()
        except IndexError:
            slot = Slot(self, tensors, stream)
        inputs = [tensors[i] for i in slot.inputs]
        params = [tensors[i] for i in slot.params]
        if list(map(DTYPE, inputs)) != slot.dtypes:  # an operator in PyTorch depends on more than was traced
            return self.leave(slot, tensors, free)
        if list(map(STRIDE, inputs)) != slot.strides:
            return self.run_restrided(slot, tensors, free)
        results = slot.again(inputs, params, stream)
        if results is None:
            if self.misaligned and any(t.data_ptr() & self.misaligned for t in tensors):
                return self.run_restrided(slot, tensors, free)
            if not slot.prepared.fits(params):  # another thread has put other data into a parameter meanwhile
                return self.leave(slot, tensors, free)
            results = self.run_anew(slot, inputs, params, stream)
        free.append(slot)
        return results

    def again(self, inputs, params):
        """run() for tensors in the library's order, whose strides are right; None if it is not a plain repetition."""
        stream = self.stream()
        free = self.slots.get(stream)
        if not free:
            return None
        try:
            slot = free.pop()
        except IndexError:  # another thread was faster
            return None
        results = slot.again(inputs, params, stream)
        free.append(slot)
        return results

    def run_anew(self, slot, inputs, params, stream):
        """Prepares, unless another thread has done so meanwhile."""
        prepared = slot.prepared
        with prepared.lock:
            contents = prepared.ready(params)
            done = contents is not None
            if not done:
                contents = prepared.take(params)
            slot.rely_on(contents)
            results = self.launch(slot, inputs, params, b.CVY_KEEP_PREPARED if done else 0, stream)
            # A captured run has prepared nothing yet; its graph does that at every replay.
            if not done and prepared.memory is contents.memory and not (stream and capturing(self.device)):
                prepared.contents = contents
        return results

    def launch(self, slot, inputs, params, flags, stream):
        """One run of the plan."""
        results = [make() for make in slot.makers]
        for entry, tensor in zip(slot.buffers, (*inputs, *params, *results)):
            entry.data = tensor.data_ptr()
        given = slot.repeat.memory
        given.workspace, owner = slot.take()
        kept = b.CVY_KEEP_WORKSPACE if slot.kept else 0
        status = _run(self.plan.handle, slot.buffers, len(slot.buffers), C.byref(given), flags | kept, stream)
        if slot.give_back is not None:
            slot.give_back(owner)
        if status:
            raise ConvoyError(status)
        if slot.owns and not slot.kept:
            slot.kept = not capturing(self.device)
            slot.repeat.flags = b.CVY_KEEP_WORKSPACE if slot.kept else 0
        slot.prepared.used = next(TICKS)
        return results

    def run_restrided(self, slot, tensors, free):
        """An operator of PyTorch laid its result out otherwise than it had announced, or a tensor begins in the middle
        of another one."""
        free.append(slot)
        copies = [restride(t, shape, stride) if t.stride() != stride or t.data_ptr() & self.misaligned
                  else t.as_strided(shape, stride) for t, (shape, stride, _) in zip(tensors, self.sources)]
        if any(copies[i].data_ptr() != tensors[i].data_ptr() for i in slot.params):
            slot.prepared.contents = None  # a copy of a parameter does not tell whether that has changed
        return self.run(copies)

    def leave(self, slot, tensors, free):
        """Runs the region in PyTorch, because the plan was not made for these tensors."""
        free.append(slot)
        self.doubts.append("tensors of another kind")
        return self.program.evaluate(tensors)

    def refresh(self):
        for slots in list(self.slots.values()):
            for slot in list(slots):
                slot.prepared.contents = None


def restride(tensor, shape, stride):
    """The same numbers with these strides. Elements that they show more than once (of an expanded tensor) are written once."""
    once = [1 if s == 0 else n for n, s in zip(shape, stride)]
    copy = torch.empty_strided(once, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor[tuple(slice(n) for n in once)]).as_strided(shape, stride)


class Fused(torch.autograd.Function):
    """Forward by Convoy; backward computes the region again, by PyTorch, and differentiates that."""

    @staticmethod
    def forward(ctx, runner, *tensors):
        ctx.runner, ctx.copies = runner, copies_of(runner, tensors)
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)  # an unused result has no gradient, not one of zeros
        results = tuple(runner.run(tensors))
        wanted = sum(1 << i for i, n in enumerate(ctx.needs_input_grad[1:]) if n)
        ctx.mark_non_differentiable(*[y for y, bits in zip(results, runner.depends) if not bits & wanted])
        return results

    @staticmethod
    def backward(ctx, *grads):
        ctx.runner.trained = True
        try:
            tensors = ctx.saved_tensors
        except RuntimeError:  # changed in place
            if not ctx.copies or torch.is_grad_enabled() or any(t._version != v for t, v in ctx.copies):
                raise  # gradients of gradients need the originals
            tensors = [t for t, _ in ctx.copies]
        return None, *gradients(ctx.runner.program, tensors, ctx.needs_input_grad[1:], grads)


def copies_of(runner, tensors):
    """(what the region reads, its version). A backward that recomputes needs inputs that PyTorch's own may not need: those that
    the forward itself changes in place are copied. With training="auto" nobody asked for it, so results of other operators,
    which may be changed by others until then, are copied, too. Not in .eval(), where calls without torch.no_grad() are mostly
    inference."""
    every = runner.training == "auto" and runner.in_training
    copied = [changes or every and not t.is_leaf for t, changes in zip(tensors, runner.overwritten)]
    if not any(copied):
        return None
    copies = [t.detach().clone() if c else t.detach() for t, c in zip(tensors, copied)]
    return [(t, t._version) for t in copies]


def gradients(program, tensors, needed, grads):
    """Gradients of the needed tensors, None for the others; differentiable on request."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Separate views, because a tensor may occur twice.
        leaves = [(t.view_as(t) if again else t.detach().requires_grad_()) if n else t.detach()
                  for t, n in zip(tensors, needed)]
        outputs = program.evaluate(leaves)
        pairs = [(o, g) for o, g in zip(outputs, grads) if g is not None and o.requires_grad]
        wanted = [leaf for leaf, n in zip(leaves, needed) if n]
        found = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=again,
                                         allow_unused=True) if pairs else [None] * len(wanted))
    return [next(found) if n else None for n in needed]
