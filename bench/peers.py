"""Who is measured: one class per peer. prepare() gives a function run(i) that computes the chain on input number i.

Every peer keeps what it prepared of the parameters from run to run. Convoy, ONNX Runtime and OpenVINO write into output
buffers that are reused; PyTorch allocates its outputs, as it does in every program.
"""

import ctypes as C
import os
from pathlib import Path

import numpy as np

import chains

ROOT = Path(__file__).resolve().parents[1]
KEEP_PREPARED = 1
DEVICES = {"cpu": 2, "cuda": 3}
PRECISIONS = {"fp32": 0, "tf32": 1}
OFF = 2


class Options(C.Structure):
    _fields_ = [("size", C.c_size_t)] + [
        (n, C.c_int32) for n in ("device", "precision", "effort", "threads", "winograd", "fuse", "ordinal")
    ] + [("seed", C.c_uint32), ("strided", C.c_int32)]


class Tensor(C.Structure):
    _fields_ = [("name", C.c_char_p), ("value", C.c_int32), ("role", C.c_int32), ("rank", C.c_int32),
                ("dims", C.c_int64 * 6)]


class Buffer(C.Structure):
    _fields_ = [("data", C.c_void_p), ("strides", C.c_void_p)]


class Cost(C.Structure):
    _fields_ = [(n, C.c_double) for n in ("seconds", "flops", "bytes", "floor", "peak", "bandwidth")] + [
        ("passes", C.c_int32)]


def library_path():
    return os.environ.get("CONVOY_LIBRARY") or str(ROOT / "build" / "libconvoy.so")


class Convoy:
    """libconvoy through ctypes, without anything between: the plan once, then cvy_plan_run()."""

    def __init__(self, text, device="cpu", precision="fp32", threads=0, fuse=True):
        self.lib = C.CDLL(library_path())
        self.lib.cvy_last_error.restype = self.lib.cvy_version.restype = C.c_char_p
        self.lib.cvy_plan_workspace.restype = C.c_size_t
        self.graph, self.plan = C.c_void_p(), C.c_void_p()
        options = Options(size=C.sizeof(Options), device=DEVICES[device], precision=PRECISIONS[precision],
                          threads=threads, fuse=0 if fuse else OFF, strided=OFF if device == "cuda" else 0)
        self.check(self.lib.cvy_graph_parse(text.encode(), C.byref(self.graph)))
        self.check(self.lib.cvy_plan_create(self.graph, C.byref(options), C.byref(self.plan)))
        self.tensors = []
        for i in range(self.lib.cvy_graph_tensors(self.graph)):
            t = Tensor()
            self.check(self.lib.cvy_graph_tensor(self.graph, i, C.byref(t)))
            self.tensors.append((t.name.decode(), t.role, tuple(t.dims[: t.rank])))
        self.workspace = self.lib.cvy_plan_workspace(self.plan)

    def check(self, status):
        if status:
            raise RuntimeError(self.lib.cvy_last_error().decode())

    def cost(self):
        cost = Cost()
        self.check(self.lib.cvy_plan_cost(self.plan, C.byref(cost)))
        return cost

    def run(self, buffers, workspace, flags, stream=None):
        self.check(self.lib.cvy_plan_run(self.plan, buffers, len(buffers), C.c_void_p(workspace),
                                         C.c_size_t(self.workspace), C.c_uint32(flags), C.c_void_p(stream)))

    def close(self):
        self.lib.cvy_plan_free(self.plan)
        self.lib.cvy_graph_free(self.graph)


class ConvoyPeer:
    def __init__(self, fuse="on"):
        self.fuse = fuse == "on"

    def version(self):
        lib = C.CDLL(library_path())
        lib.cvy_version.restype = C.c_char_p
        return {"convoy": lib.cvy_version().decode()}

    def prepare(self, chain, inputs, params, threads):
        convoy = Convoy(chain.text, threads=threads, fuse=self.fuse)
        raw = np.empty(convoy.workspace + 256, np.uint8)
        workspace = raw.ctypes.data + -raw.ctypes.data % 256
        out = next(np.empty(shape, np.float32) for _, role, shape in convoy.tensors if role == 2)
        known = dict(params)

        def buffers(x):
            known[chain.source] = x
            arrays = [out if role == 2 else known[name] for name, role, _ in convoy.tensors]
            return (Buffer * len(arrays))(*(Buffer(a.ctypes.data, None) for a in arrays))

        sets, state = [buffers(x) for x in inputs], {"flags": 0, "alive": (raw, known)}

        def run(i):
            convoy.run(sets[i], workspace, state["flags"])
            state["flags"] = KEEP_PREPARED
            return out

        cost = convoy.cost()
        run.extra = {"passes": cost.passes, "ms_predicted": 1e3 * cost.seconds, "flops": cost.flops}
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
        xs = [torch.from_numpy(x) for x in inputs]
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

        # float32 has to be asked for: on processors with bf16 instructions the default is bf16
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
