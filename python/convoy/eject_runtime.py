"""How an ejected file calls its launches: Python that is copied into it unchanged."""

RUNTIME = r'''
# ---- calling the launches ------------------------------------------------------------------------------------------

POINTER, STRIDE, VERSION = torch.Tensor.data_ptr, torch.Tensor.stride, operator.attrgetter("_version")
KIND = operator.attrgetter("shape", "dtype", "device")
NEEDS_GRADIENT = operator.attrgetter("requires_grad")
GRADIENTS = torch.is_grad_enabled


class Region:
    """A C++ function below: launches on tensors of these shapes and strides, with a workspace per stream.

    inputs, params: (name, shape, strides, dtype) of each; results: the same without names. What depends only on parameters
    (`prepare`) is launched again only when one of them has changed. Everything before the launches is host time
    that an idle device waits for: a call like the one before goes by again(), which looks at all tensors at once, by
    functions of C.
    """

    def __init__(self, name, workspace, inputs, params, results):
        self.name, self.workspace, self.sources, self.results = name, workspace, [*inputs, *params], results
        self.n_inputs, self.params = len(inputs), [getter(name) for name, *_ in params]
        self.strides = [stride for _, _, stride, _ in self.sources]
        self.names = [name for name, *_ in params]

    def __call__(self, module, *inputs):
        results = self.again(module, inputs)
        if results is not None:
            return results
        for (name, shape, _, dtype), value in zip(self.sources, inputs):
            expect(name, value, dtype, shape)
        tensors = [*inputs, *[param(module) for param in self.params]]
        if torch.is_grad_enabled() and any(map(NEEDS_GRADIENT, tensors)):
            return Forward.apply(self, module, *tensors)
        return self.run(module, tensors)

    def again(self, module, inputs):
        """Repeats the previous call on inputs of the same kind; None if anything has changed since."""
        kept = module.__dict__.get("_workspaces")
        if not kept or GRADIENTS():
            return None
        index = current_device()
        stream = current_stream(index)
        key = self.name, index, stream
        last = kept.get(key)
        if last is None:
            return None
        try:
            params = last.find(module)
            fits = last.fits(*inputs, *params)
            state = [*map(POINTER, params), *map(VERSION, params)]
        except (AttributeError, KeyError, TypeError, RuntimeError):  # not tensors, or they do not count their changes
            return None
        if not fits or state != last.state:
            return None
        pointers = list(map(POINTER, inputs))
        if functools.reduce(operator.or_, pointers) % 16:
            return None
        results = [make() for make in last.makers]
        pointers += state[: len(params)]
        pointers += map(POINTER, results)
        try:
            last.launches(pointers, last.start, False, stream)
        except RuntimeError:
            kept.pop(key, None)  # the contents of its workspace are unknown
            raise
        return tuple(results)

    def run(self, module, tensors):
        """tensors: inputs and parameters, at any address and with any strides."""
        device = tensors[0].device
        for (name, shape, _, dtype), tensor in zip(self.sources, tensors):
            expect(name, tensor, dtype, shape, device)
        tensors = [fit(tensor, stride) for tensor, stride in zip(tensors, self.strides)]
        if device.index == current_device():
            return self.launch(module, tensors, device)
        with torch.cuda.device(device):
            return self.launch(module, tensors, device)

    def launch(self, module, tensors, device):
        """On the current stream of the current device."""
        launches, stream = getattr(library(device.index), self.name), current_stream(device.index)
        makers = [maker(*r, device) for r in self.results]
        results, params = [make() for make in makers], tensors[self.n_inputs :]
        state = [*map(POINTER, params), *versions(params)]
        kept, key = module.__dict__.setdefault("_workspaces", {}), (self.name, device.index, stream)
        capturing = torch.cuda.is_current_stream_capturing()  # then nothing runs before the graph is replayed
        last = (kept.get if capturing else kept.pop)(key, None)
        memory = last.memory if last else torch.empty(self.workspace + 256, dtype=torch.uint8, device=device)
        start = -(-memory.data_ptr() // 256) * 256
        launches(list(map(POINTER, [*tensors, *results])), start, not last or state != last.state, stream)
        if not capturing:
            kept[key] = Last(memory, start, state, checker(tensors), finder(module, self.names), makers, launches)
        return tuple(results)


class Last:
    """A call that was made: its workspace, its parameters and its inputs."""

    __slots__ = ("memory", "start", "state", "fits", "find", "makers", "launches")

    def __init__(self, *values):
        self.memory, self.start, self.state, self.fits, self.find, self.makers, self.launches = values


def checker(tensors):
    """A function that says of as many arguments whether they are of the same types, sizes, strides, dtypes and devices:
    PyTorch's own check, one call of C, if it has one."""
    kinds, strides = list(map(KIND, tensors)), list(map(STRIDE, tensors))
    try:
        from torch._C._dynamo.guards import TensorGuards

        sizes = [list(t.shape) for t in tensors]
        return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=list(map(list, strides))).check
    except (ImportError, TypeError):
        return lambda *given: list(map(KIND, given)) == kinds and list(map(STRIDE, given)) == strides


def finder(module, names):
    """A function that finds tensors of these dotted names in the dictionaries where they are now: one expression, since a
    call has no time to lose. KeyError if one is somewhere else."""
    places = []
    for name in names:
        *path, last = name.split(".")
        owner, place = module, "m"
        for part in path:
            owner, place = owner._modules[part], f"{place}._modules[{part!r}]"
        kind = "_buffers" if last in owner._buffers else "_parameters"
        places.append(f"{place}.{kind}[{last!r}]")
    return eval(f"lambda m: ({''.join(place + ', ' for place in places)})")


class Forward(torch.autograd.Function):
    """Results stay in autograd's graph, so gradients are refused instead of silently missing."""

    @staticmethod
    def forward(ctx, region, module, *tensors):
        return region.run(module, list(tensors))

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError("ModelNew computes no gradients: train Model, and load its state_dict here")


def expect(name, value, dtype, shape, device="cuda"):
    """Refuses a tensor that the kernels were not made for."""
    got = type(value).__name__
    if isinstance(value, torch.Tensor):
        if value.dtype == dtype and value.shape == shape and value.device.type == "cuda":
            if device in ("cuda", value.device):
                return
        got = f"{value.dtype} {list(value.shape)} on {value.device}"
    raise ValueError(f"ModelNew was made for {name} as {dtype} {list(shape)} on {device}, got {got}")


def getter(name):
    """module -> its tensor of this dotted name. By the dictionaries that modules keep: a call has no time to lose."""
    *path, last = name.split(".")

    def get(module):
        for part in path:
            module = module._modules[part]
        tensor = module._parameters.get(last)
        return getattr(module, last) if tensor is None else tensor

    return get


def public_stream(index):
    return torch.cuda.current_stream(index).cuda_stream


# PyTorch's fast functions for these have no public names; the public ones create objects first.
current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", public_stream)
current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def maker(shape, stride, dtype, device):
    """A function that makes one result after another, on the current device."""
    try:
        from torch._C._dynamo.guards import _empty_strided_cuda as short  # half the time
    except ImportError:
        short = None
    if short is None or device.type != "cuda":
        return functools.partial(torch.empty_strided, shape, stride, dtype=dtype, device=device)
    return functools.partial(short, shape, stride, dtype)


def fit(tensor, stride):
    """The tensor with these strides, from a multiple of 16 bytes on: itself, or a copy."""
    if tensor.stride() == stride and tensor.data_ptr() % 16 == 0:
        return tensor
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def versions(tensors):
    """Differ after each change; inference tensors do not count changes, so theirs always differ."""
    try:
        return list(map(VERSION, tensors))
    except RuntimeError:
        return [object()]


# ---- compiling -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=None)
def library(index):
    """The compiled launches; refuses devices that they were not made for."""
    made, got = CAPABILITY, torch.cuda.get_device_capability(index)
    if got != made:
        made, got = (".".join(map(str, c)) for c in (made, got))
        raise RuntimeError(f"ModelNew was made for compute capability {made}; cuda:{index} has {got}")
    count = torch.cuda.get_device_properties(index).multi_processor_count
    if count < BLOCKS_AT_ONCE:
        raise RuntimeError(f"ModelNew was made for {BLOCKS_AT_ONCE} multiprocessors; cuda:{index} has {count}")
    return compiled()


@functools.lru_cache(maxsize=None)
def compiled():
    text, variable = source(), "TORCH_CUDA_ARCH_LIST"
    name = "model_new_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    before, quick = os.environ.get(variable), "no_implicit_headers"  # nvcc reads PyTorch's for most of a minute
    more = {quick: True} if quick in inspect.signature(load_inline).parameters else {}
    os.environ[variable] = ARCHITECTURE  # the only way that works in every PyTorch
    try:
        return load_inline(name, DECLARATIONS, text, functions=FUNCTIONS, extra_cuda_cflags=FLAGS, **more)
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


def source():
    """All kernels and launches as one text."""
    return HEAD + "".join(map(kernel, range(len(KERNELS)))) + LAUNCHES


def kernel(number):
    """A kernel is a namespace; its options are macros, which end with it."""
    name, file, options, epilogue = KERNELS[number]
    text = expand(file, {**FILES, "epilogue.cuh": epilogue}, set()).replace("#pragma once\n", "")
    text = text.replace('extern "C" __device__', "__device__")  # variables are the namespace's own
    macros = [option.split("=") for option in options.split()] + [["KERNEL_NAME", name]]
    used = sorted({m for m, _ in macros} | set(re.findall(r"^ *# *define +(\w+)", text, flags=re.M)))
    defines = "".join(f"#define {m} {value}\n" for m, value in macros)
    return f"\n{defines}namespace k{number} {{\n{text}\n}}\n" + "".join(f"#undef {m}\n" for m in used)


def expand(name, files, seen):
    """A file with every #include replaced by the included text, each once."""

    def include(match):
        other = match[1] or "epilogue.cuh"
        if other in seen:
            return ""
        seen.add(other)
        return expand(other, files, seen)

    return re.sub(r'^#include (?:"(\w+\.cuh)"|TC_EPILOGUE).*$', include, files[name], flags=re.M)
'''
