"""Texts of an ejected file: launches as C++, kernels as CUDA C, and the Python that compiles and calls them.

`launches` is what engine.Plan.launches() gives. Nothing here needs PyTorch.
"""

import re
import struct
import textwrap

WIDTH = 116

# ---- numbers and names -------------------------------------------------------------------------------------------


def float_text(number):
    """The shortest decimal that reads back as the same float."""
    single = struct.pack("f", number)
    digits = next(d for d in (f"{number:.{n}g}" for n in range(1, 18)) if struct.pack("f", float(d)) == single)
    return digits + ("" if set(digits) & set(".e") else ".0") + "f"


def identifiers(names, taken):
    """C++ names for dotted ones, all different: "conv.weight" is conv_weight."""
    made = []
    for name in names:
        word = re.sub(r"\W", "_", name)
        while not word[:1].isalpha() or word in taken:
            word = "t_" + word if not word[:1].isalpha() else word + "_"
        taken = taken | {word}
        made.append(word)
    return made


def wrapped(words, width):
    return textwrap.wrap(" ".join(words), width, break_long_words=False, break_on_hyphens=False)


# ---- launches ----------------------------------------------------------------------------------------------------

RESERVED = {"tensors", "workspace", "work", "prepare", "stream", "number", "a", "b", "map", "map_w", "launch", "check", "view",
            "arguments", "manner", "tc_arguments", "tensor_map", "tiles", "pixels", "driver", "char", "int", "float",
            "double", "long", "bool", "class", "new", "this", "default", "register", "switch", "union", "template", "operator", "k"}  # fmt: skip

HEAD = r"""#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

// ---- launching ----

// What most kernels are handed (cvy_args of common.cuh): an extent, and tensors with strides in elements.
struct view {
    void *p;
    long long s[6];
};
template <int N> struct arguments {
    long long extent;
    view t[N];
};

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    cudaGetLastError(); // reported here, not by the next call
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

// TOGETHER: all blocks at once, since they wait for each other. FOLLOWS: it may begin while what came before ends, and
// waits for that by itself.
enum manner { AFTER, TOGETHER, FOLLOWS };

// `first`: on this device and stream, so that its shared memory has to be allowed.
static void launch(const char *name, const void *kernel, dim3 grid, unsigned threads, unsigned shared, manner how,
                   bool first, cudaStream_t stream, std::initializer_list<const void *> list)
{
    cudaLaunchAttribute attribute = {};
    cudaLaunchConfig_t config = {};
    if (how == FOLLOWS) {
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    } else {
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = 1;
    }
    config.gridDim = grid;
    config.blockDim = dim3(threads, 1, 1);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = how != AFTER;
    if (shared && first)
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), name);
    check(cudaLaunchKernelExC(&config, kernel, const_cast<void **>(list.begin())), name);
}
"""

HEAD_TC = r"""
// What conv_tc.cu gets in addition (tc_args of conv_tc.cuh).
struct tc_arguments {
    void *x, *w, *packed, *unscale, *bias, *gamma, *beta, *y, *part, *state;
    int n;
    float eps;
};
"""

HEAD_MAP = r"""
// The first argument of tensor-core kernels.
struct alignas(64) tensor_map {
    char opaque[128];
};
"""

HEAD_DRIVER = r"""
// The driver makes tensor maps; its functions are found by their names.
static void *driver(const char *name)
{
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    check(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found), name);
#else
    check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found), name);
#endif
    if (!function) throw std::runtime_error(std::string("the driver has no ") + name);
    return function;
}
"""

HEAD_TMA = r"""
// x as tensor copies see it: extents, strides in bytes, and the box that one copy brings. Tensors of four dimensions are
// not swizzled, those of fewer are, by 128 bytes.
static tensor_map tiles(void *x, CUtensorMapDataType type, cuuint32_t rank, std::initializer_list<cuuint64_t> dims,
                        std::initializer_list<cuuint64_t> strides, std::initializer_list<cuuint32_t> box)
{
    static const auto encode = (decltype(&cuTensorMapEncodeTiled))driver("cuTensorMapEncodeTiled");
    static const cuuint32_t steps[4] = {1, 1, 1, 1};
    tensor_map map = {};
    if (encode((CUtensorMap *)&map, type, rank, x, dims.begin(), strides.begin(),
               box.begin(), steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               rank < 4 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        throw std::runtime_error("cuTensorMapEncodeTiled failed");
    return map;
}
"""

HEAD_PIXELS = r"""
// x, channels last, as copies that walk through its pixels see it: extents, strides in bytes; where a walk along W, H
// and D begins, how far beyond the end it goes, and its steps; channels and pixels of one copy.
static tensor_map pixels(void *x, CUtensorMapDataType type, std::initializer_list<cuuint64_t> dims,
                         std::initializer_list<cuuint64_t> strides, std::initializer_list<int> lower,
                         std::initializer_list<int> upper, std::initializer_list<cuuint32_t> steps,
                         cuuint32_t channels, cuuint32_t count)
{
    static const auto encode = (decltype(&cuTensorMapEncodeIm2col))driver("cuTensorMapEncodeIm2col");
    tensor_map map = {};
    if (encode((CUtensorMap *)&map, type, (cuuint32_t)dims.size(), x, dims.begin(), strides.begin(), lower.begin(),
               upper.begin(), channels, count, steps.begin(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        throw std::runtime_error("cuTensorMapEncodeIm2col failed");
    return map;
}
"""


class Kernels:
    """Every kernel once, regardless of how often it is launched; numbered k0, k1, ..."""

    def __init__(self):
        self.number, self.all, self.files = {}, [], {}

    def add(self, launch, files):
        key = launch["entry"], launch["source"], launch["epilogue"], tuple(launch["options"])
        if key not in self.number:
            self.number[key] = len(self.all)
            self.all.append(launch)
            self.keep(launch["source"], files)
            for name in included(launch["epilogue"]):
                self.keep(name, files)
        return f"k{self.number[key]}::{launch['entry']}"

    def keep(self, name, files):
        if name not in self.files and name != "epilogue.cuh":
            self.files[name] = files[name]
            for other in included(files[name]):
                self.keep(other, files)


def included(text):
    return re.findall(r'^#include "(\w+\.cuh)"', text, flags=re.M)


def view_names(launch):
    """The names of the views, from the first comment of the generated text."""
    told = dict(re.findall(r"^//   t\[(\d+)\]  ([^\[\n]+)", launch["epilogue"], flags=re.M))
    return [v.get("name") or told.get(str(i), "").strip() for i, v in enumerate(launch["views"])]


def place(view, name, tensors):
    """A view's pointer as C++."""
    if "tensor" in view:
        return tensors[view["tensor"]]
    note = re.sub(r"[^\w .]", "", name)
    return f"work + {view['at']}" + (f" /* {note} */" if note else "")


def braces(numbers):
    return "{" + ", ".join(map(str, numbers if any(numbers) else ())) + "}"  # what is not named is zero


def plain_arguments(launch, pointers, name):
    rows = [f"{{{p}, {braces(v['strides'])}}}" for p, v in zip(pointers, launch["views"])]
    return [f"const arguments<{len(rows)}> {name} = {{{launch['extent']}, {{", *(f"    {row}," for row in rows), "}};"]


def map_line(tc, x, name="map", of=""):
    kind = "CU_TENSOR_MAP_DATA_TYPE_" + {"fp32": "FLOAT32", "fp16": "FLOAT16", "bf16": "BFLOAT16"}[tc["dtype"]]
    if "pixels" in tc and not of:
        p = tc["pixels"]
        lists = ["{" + ", ".join(map(str, p[k])) + "}" for k in ("dims", "steps", "lower", "upper")]
        every = "{" + ", ".join(map(str, [1, *p["every"], 1])) + "}"
        return f"const tensor_map {name} = pixels({x}, {kind}, {', '.join([*lists, every])}, {tc['box'][0]}, {tc['box'][1]});"
    sizes = ", ".join(map(braces, (tc[of + "dims"], tc[of + "steps"], tc[of + "box"])))
    rank = 3 if tc["words"] else 2 if tc["product"] else 4
    return f"const tensor_map {name} = tiles({x}, {kind}, {rank}, {sizes});"


def product_lines(launch, pointers):
    """A tensor-core matrix product or wide convolution: the tensor map, and the arguments of any kernel."""
    tc = launch["tc"]
    maps = [map_line(tc, pointers[tc["x"]])]
    if tc["pair"]:
        maps.append(map_line(tc, pointers[tc["w"]], "map_w", "w_"))
    return [*maps, *plain_arguments(launch, pointers, "a")], "&map, &map_w, &a" if tc["pair"] else "&map, &a"


def tc_lines(launch, pointers):
    """A tensor-core convolution: the tensor map, its special arguments, and the tensors of the operators after it."""
    tc = launch["tc"]
    at = {k: "nullptr" if tc[k] < 0 else pointers[tc[k]] for k in
          ("x", "w", "packed", "unscale", "bias", "gamma", "beta", "y", "part", "state")}  # fmt: skip
    lines = ["const tensor_map map = {};"]
    if tc["tma"]:
        lines = [map_line(tc, at["x"])]
    lines += ["const tc_arguments b = {", *(f"    {pointer}," for pointer in at.values())]
    lines += [f"    {launch['extent']}, {float_text(tc['eps'])},", "};"]
    lines += plain_arguments(launch, pointers, "a")
    if tc["zero_bytes"]:
        lines.append(f"if (prepare) check(cudaMemsetAsync({at['part']}, 0, {tc['zero_bytes']}, stream), \"zeros\");")
    return lines, "&map, &b, &a"


def pack_lines(launch, pointers):
    tc = launch["tc"]
    named = [(n, "nullptr" if tc[n] < 0 else pointers[tc[n]]) for n in ("w", "packed", "unscale", "factor")]
    return [f"void *const {n} = {p};" for n, p in named], ", ".join("&" + n for n, _ in named)


def launch_lines(launch, tensors, kernels, files):
    if any(launch["cluster"]) or launch["block"][1:] != [1, 1]:
        raise ValueError(f"{launch['entry']}: a launch of clusters, or of blocks in two dimensions")
    pointers = [place(v, n, tensors) for v, n in zip(launch["views"], view_names(launch))]
    if "tc" not in launch:
        lines, given = plain_arguments(launch, pointers, "a"), "&a"
    elif launch["tc"]["packs"]:
        lines, given = pack_lines(launch, pointers)
    elif launch["tc"]["product"]:
        lines, given = product_lines(launch, pointers)
    else:
        lines, given = tc_lines(launch, pointers)
    how = "TOGETHER" if launch["cooperative"] else "FOLLOWS" if launch["follows"] else "AFTER"
    lines += [
        f'launch("{launch["entry"]}", (const void *){kernels.add(launch, files)},',
        f"       dim3({', '.join(map(str, launch['grid']))}), {launch['block'][0]}, {launch['shared']}, {how}, "
        f"{'prepare' if launch['shared'] else 'false'}, stream, {{{given}}});",
    ]
    return ["if (prepare) {" if launch["prepared"] else "{", *("    " + line for line in lines), "}"]


SIGNATURE = "void {name}(const std::vector<int64_t> &tensors, int64_t workspace, bool prepare, int64_t number)"


def region_text(name, plan, sources, results, chain, kernels):
    """One C++ function: the launches of a region in order. sources, results: names for the library's tensors."""
    tensors = identifiers([*sources, *results], RESERVED)
    lines = [f"// {line}" for line in textwrap.wrap(chain, WIDTH - 3)]
    lines += [SIGNATURE.format(name=name), "{"]
    lines += ["    const cudaStream_t stream = (cudaStream_t)number;", "    char *const work = (char *)workspace;"]
    lines += [f"    void *const {t} = (void *)tensors[{i}];" for i, t in enumerate(tensors)]
    body = [line for launch in plan["launches"] for line in launch_lines(launch, tensors, kernels, plan["files"])]
    used = "\n".join(body)
    lines = [line for line in lines if not (m := re.match(r"    \S.*\*const (\w+) =", line)) or
             re.search(rf"\b{m[1]}\b", used)]  # fmt: skip
    if not body:
        lines = [line for line in lines if "stream" not in line]
    if "prepare" not in used:
        lines = [line.replace("bool prepare", "bool") for line in lines]
    if not re.search(r"\bwork\b", used):
        lines = [line.replace("int64_t workspace", "int64_t") for line in lines]
    return "\n".join([*lines, *("    " + line for line in body), "}", ""])


def launches_text(plans, regions):
    """plans: of all regions; regions: region_text() of each."""
    tc = [launch["tc"] for plan in plans for launch in plan["launches"] if "tc" in launch]
    parts = [
        (HEAD_TC, any(not t["packs"] and not t["product"] for t in tc)),
        (HEAD_MAP, any(not t["packs"] for t in tc)),
        (HEAD_DRIVER, any(t["tma"] for t in tc)),
        (HEAD_TMA, any(t["tma"] and "pixels" not in t for t in tc)),
        (HEAD_PIXELS, any("pixels" in t for t in tc)),
    ]
    head = HEAD + "".join(text for text, wanted in parts if wanted)
    return head, "\n// ---- launches, in order ----\n\n" + "\n".join(regions)


# ---- kernels -----------------------------------------------------------------------------------------------------


def quoted(text):
    """A raw string of Python."""
    if '"""' in text or text.endswith(("\\", '"')):
        raise ValueError("a text with three quotes in it")
    return f'r"""{text}"""'


def kernels_text(kernels):
    lines = ["KERNELS = ["]
    for i, k in enumerate(kernels.all):
        options = [o.removeprefix("-D").replace('="epilogue.cuh"', "=1") for o in k["options"]]
        lines += [f"    (  # k{i}", f'        "{k["entry"]}", "{k["source"]}",']
        rows = wrapped(options, WIDTH - 14)
        lines += [f'        "{row} "' for row in rows[:-1]] + [f'        "{rows[-1]}",']
        lines += [f"        {quoted(k['epilogue'])},", "    ),"]
    return "\n".join([*lines, "]", ""])


def files_text(kernels):
    """Kernels' sources first, then what they include."""
    names = sorted(kernels.files, key=lambda n: (n.endswith(".cuh"), n))
    return "FILES = {}\n" + "".join(f'\nFILES["{n}"] = {quoted(kernels.files[n])}\n' for n in names)


# ---- Python ------------------------------------------------------------------------------------------------------

FILE = '''\
"""{title}: ModelNew computes what Model does by the CUDA kernels below, which nvcc compiles at its first call.

Made by `convoy eject` {version} for {device} (compute capability {major}.{minor}), precision {precision}, and for
inputs with exactly the shapes of get_inputs(). It needs PyTorch with CUDA, nvcc and ninja; it does not need Convoy.
Kernels, launches, their order and arguments are those of convoy.compile(), which compiled them with NVRTC {nvrtc}.
"""

{problem}


# ---- the same by kernels ---------------------------------------------------------------------------------------------

import functools
import hashlib
import inspect
import operator
import os
import re

import torch
from torch.utils.cpp_extension import load_inline


class ModelNew(Model):
    """The same constructor, parameters and results as Model; inference only."""

    def forward({signature}):
{forward}

    def __getstate__(self):
        return {{k: v for k, v in self.__dict__.items() if k != "_workspaces"}}

{runtime}

# ---- what it was made for --------------------------------------------------------------------------------------------

CAPABILITY = ({major}, {minor})
BLOCKS_AT_ONCE = {together}  # blocks that wait for each other, one on a multiprocessor; 0: none do
ARCHITECTURE = "{arch}"
FLAGS = ["-lineinfo", "-diag-suppress=177"]  # 177: unused functions
FUNCTIONS = [{functions}]

{regions}

# ---- launches --------------------------------------------------------------------------------------------------------

DECLARATIONS = r"""#include <torch/extension.h>
#include <cstdint>
#include <vector>
{declarations}"""

HEAD = {head}

LAUNCHES = {launches}

# ---- kernels: name, source, options, and the generated epilogue.cuh --------------------------------------------------

{kernels}

# ---- sources ---------------------------------------------------------------------------------------------------------

{files}'''
