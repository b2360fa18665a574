"""Who is measured: one class per peer. prepare() gives a function run(i) that computes the chain on input number i.

Every peer keeps what it prepared of the parameters from run to run. Convoy, ONNX Runtime and OpenVINO write into output
buffers that are reused; PyTorch allocates its outputs, as it does in every program.
"""

import ctypes as C
import sys
from pathlib import Path

import numpy as np

import chains

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
from convoy import binding  # noqa: E402
from convoy.binding import CVY_ALIGN, CVY_KEEP_PREPARED, CVY_OUTPUT, lib  # noqa: E402

DEVICES = {"cpu": binding.CVY_CPU, "cuda": binding.CVY_CUDA}
PRECISIONS = {"fp32": binding.CVY_FP32, "tf32": binding.CVY_TF32}


class Convoy:
    """The library without anything between: the plan once, then cvy_plan_run()."""

    def __init__(self, text, device="cpu", precision="fp32", threads=0, fuse=True, library=lib):
        self.lib = library
        self.graph, self.plan = C.c_void_p(), C.c_void_p()
        options = binding.cvy_options(
            size=C.sizeof(binding.cvy_options), device=DEVICES[device], precision=PRECISIONS[precision], threads=threads,
            fuse=binding.CVY_DEFAULT if fuse else binding.CVY_OFF,
            strided=binding.CVY_OFF if device == "cuda" else binding.CVY_DEFAULT)
        self.check(self.lib.cvy_graph_parse(text.encode(), C.byref(self.graph)))
        self.check(self.lib.cvy_plan_create(self.graph, C.byref(options), C.byref(self.plan)))
        self.tensors = []
        for i in range(self.lib.cvy_graph_tensors(self.graph)):
            t = binding.cvy_tensor()
            self.check(self.lib.cvy_graph_tensor(self.graph, i, C.byref(t)))
            self.tensors.append((t.name.decode(), t.role, tuple(t.dims[: t.rank])))
        self.workspace = self.lib.cvy_plan_workspace(self.plan)

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.cvy_last_error().decode())

    def buffers(self, addresses):
        """One buffer for each of `tensors`, contiguous."""
        return (binding.cvy_buffer * len(addresses))(*(binding.cvy_buffer(a, None) for a in addresses))

    def cost(self):
        cost = binding.cvy_cost()
        self.check(self.lib.cvy_plan_cost(self.plan, C.byref(cost)))
        return {"flops": cost.flops, "passes": cost.passes, "ms_predicted": 1e3 * cost.seconds}

    def run(self, buffers, workspace, flags, stream=None):
        self.check(self.lib.cvy_plan_run(self.plan, buffers, len(buffers), workspace, self.workspace, flags, stream))

    def close(self):
        self.lib.cvy_plan_free(self.plan)
        self.lib.cvy_graph_free(self.graph)


class ConvoyPeer:
    """wide: a chain in half precision as one in float32, on the same values."""

    def __init__(self, fuse="on", library=lib, wide=False):
        self.fuse, self.library, self.wide = fuse == "on", library, wide

    def version(self):
        return {"convoy": lib.cvy_version().decode()}

    def prepare(self, chain, inputs, params, threads):
        text, dtype = (chains.DECLARED.sub("", chain.text), "fp32") if self.wide else (chain.text, chain.dtype)
        convoy = Convoy(text, threads=threads, fuse=self.fuse, library=self.library)
        raw = np.empty(convoy.workspace + CVY_ALIGN, np.uint8)
        workspace = raw.ctypes.data + -raw.ctypes.data % CVY_ALIGN
        made = np.float32 if dtype == "fp32" else np.uint16
        out = next(np.empty(shape, made) for _, role, shape in convoy.tensors if role == CVY_OUTPUT)
        stored = (lambda a: a) if dtype == "fp32" else (lambda a: chains.words(a, dtype))
        known, inputs = {name: stored(a) for name, a in params.items()}, [stored(x) for x in inputs]

        def buffers(x):
            known[chain.source] = x
            arrays = [out if role == CVY_OUTPUT else known[name] for name, role, _ in convoy.tensors]
            return convoy.buffers([a.ctypes.data for a in arrays])

        sets, state = [buffers(x) for x in inputs], {"flags": 0, "alive": (raw, known, inputs)}

        def run(i):
            convoy.run(sets[i], workspace, state["flags"])
            state["flags"] = CVY_KEEP_PREPARED
            return out

        run.extra = convoy.cost()
        run.floats = lambda: out if dtype == "fp32" else chains.floats(out, dtype)
        run.close = convoy.close
        return run


class TorchPeer:
    def __init__(self, mode="eager", layout="nchw"):
        self.mode, self.layout = mode, layout

    def version(self):
        import torch

        return {"torch": torch.__version__}

    def prepare(self, chain, inputs, params, threads):
        import torch

        torch.set_num_threads(threads)
        module = chains.torch_module(chain, params)
        xs = [torch.from_numpy(x).to(chains.torch_dtype(chain)) for x in inputs]
        if self.layout == "channels_last":
            module = module.to(memory_format=torch.channels_last)
            xs = [x.to(memory_format=torch.channels_last) for x in xs]
        if self.mode != "eager":
            torch._dynamo.reset()
            mode = None if self.mode == "compile" else self.mode
            module = torch.compile(module, mode=mode, dynamic=False)

        def run(i):
            with torch.inference_mode():
                return module(xs[i])

        run.floats = lambda: run(0).float().numpy()
        return run


class OnnxRuntimePeer:
    def __init__(self, norm="instance"):
        self.norm = norm

    def version(self):
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__}

    def prepare(self, chain, inputs, params, threads):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        session = ort.InferenceSession(chains.onnx_model(chain, params, self.norm), options,
                                       providers=["CPUExecutionProvider"])
        first = session.run(None, {"x": inputs[0]})[0]
        out, bindings = np.empty_like(first), []
        for x in inputs:
            binding = session.io_binding()
            binding.bind_cpu_input("x", x)
            binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
            bindings.append(binding)

        def run(i):
            session.run_with_iobinding(bindings[i])
            return out

        return run


class OpenVinoPeer:
    def __init__(self, norm="instance"):
        self.norm = norm

    def version(self):
        import openvino

        return {"openvino": openvino.__version__.split("-")[0]}

    def prepare(self, chain, inputs, params, threads):
        import openvino as ov

        # float32 must be requested: on processors with bf16 instructions the default is bf16
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1,
                  "PERFORMANCE_HINT": "LATENCY"}
        core = ov.Core()
        compiled = core.compile_model(core.read_model(chains.onnx_model(chain, params, self.norm)), "CPU", config)
        request = compiled.create_infer_request()
        tensors = [ov.Tensor(x, shared_memory=True) for x in inputs]

        def run(i):
            request.set_input_tensor(tensors[i])
            request.infer()
            return request.get_output_tensor().data

        return run


# name -> how it is made; the name of a row's peer. Ours is `convoy`.
PEERS = {
    "convoy": lambda: ConvoyPeer(),
    "convoy unfused": lambda: ConvoyPeer("off"),
    "convoy float32": lambda: ConvoyPeer(wide=True),
    "torch eager": lambda: TorchPeer("eager"),
    "torch eager channels_last": lambda: TorchPeer("eager", "channels_last"),
    "torch.compile": lambda: TorchPeer("compile"),
    "torch.compile channels_last": lambda: TorchPeer("compile", "channels_last"),
    "torch.compile max-autotune": lambda: TorchPeer("max-autotune"),
    "onnxruntime": lambda: OnnxRuntimePeer(),
    "onnxruntime GroupNormalization": lambda: OnnxRuntimePeer("group"),
    "openvino": lambda: OpenVinoPeer(),
    "openvino GroupNormalization": lambda: OpenVinoPeer("group"),
}
