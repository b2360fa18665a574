"""`convoy eject FILE.py`: writes the model of a problem file and its CUDA kernels to one file that does not need Convoy.

The model is traced on fake tensors, planned for this machine's GPU exactly as convoy.compile() does it, and the
launches of each region are written down (eject_text.py). What Convoy leaves to PyTorch is written as PyTorch calls. No
tensor is put on the GPU, and nothing runs there.
"""

import argparse
import sys
from pathlib import Path

import torch

from . import binding as b
from . import eject_text as texts
from .eject_model import GRAD_MODE, Traced, Writer, build_model, input_names, problem_text
from .eject_runtime import RUNTIME
from .engine import ConvoyError, Graph, Plan
from .problem import Bad, load, parsed
from .region import strides_of
from .settings import Settings

# ---- the file ----------------------------------------------------------------------------------------------------


def checks_text(names, inputs, training, looked_at):
    """looked_at: names of tensors that are not checked here."""
    lines = []
    if training:
        lines += ["if self.training:", '    raise RuntimeError("ModelNew was made for evaluation: call .eval() first")']
    for name, value in zip(names, inputs):
        if name in looked_at:
            continue
        if isinstance(value, torch.Tensor):
            lines.append(f'expect("{name}", {name}, {value.dtype}, {tuple(value.shape)})')
        else:
            told = f"ModelNew was made for {name} = {value!r}"
            lines += [f"if {name} != {value!r}:", f"    raise ValueError({told!r})"]
    return lines


def region_constant(number, runner, labels, workspace):
    rows = {False: [], True: []}
    for i, label in zip(runner.program.order(), labels):
        shape, stride, dtype = runner.sources[i]
        rows[runner.program.params[i]].append(f'    ("{label}", {shape}, {stride}, {dtype}),')
    results = ", ".join(f"({shape}, {stride}, {dtype})" for shape, stride, dtype in runner.outputs)
    first = f'region{number} = Region("region{number}", {workspace}, ['
    return "\n".join([first, *rows[False], "], [", *rows[True], f"], [{results}])"])


def file_text(path, model_text, names, inputs, writer, plans, training, precision):
    kernels = texts.Kernels()
    functions = []
    for i, (plan, (runner, labels)) in enumerate(zip(plans, writer.regions)):
        results = [f"result{k}" for k in range(len(runner.outputs))]
        functions.append(texts.region_text(f"region{i}", plan, labels, results, str(runner.graph), kernels))
    head, launches = texts.launches_text(plans, functions)
    every = [launch for plan in plans for launch in plan["launches"]]
    major, minor = plans[0]["capability"]
    forward = [*checks_text(names, inputs, training, writer.looked_at), *writer.lines]
    return texts.FILE.format(
        title=Path(path).name,
        version=b.CVY_VERSION,
        precision=precision,
        device=plans[0]["device"],
        nvrtc=plans[0]["nvrtc"],
        problem=model_text,
        signature=", ".join(["self", *names]),
        forward="\n".join("        " + line for line in forward),
        runtime=RUNTIME,
        major=major,
        minor=minor,
        together=max([launch["grid"][0] for launch in every if launch["cooperative"]], default=0),
        arch=f"{major}.{minor}" + "a" * any(launch["arch_specific"] for launch in every),
        functions=", ".join(f'"region{i}"' for i in range(len(plans))),
        regions="\n".join(region_constant(i, *writer.regions[i], p["workspace"]) for i, p in enumerate(plans)),
        declarations="".join(texts.SIGNATURE.format(name=f"region{i}") + ";\n" for i in range(len(plans))),
        head=texts.quoted(head),
        launches=texts.quoted(launches),
        kernels=texts.kernels_text(kernels),
        files=texts.files_text(kernels),
    )


def plan_of(runner):
    """The launches of a run of the region, for the strides that its sources and results have."""
    described = [runner.sources[i] for i in runner.program.order()] + list(runner.outputs)
    return runner.plan.launches([strides_of(shape, stride) for shape, stride, _ in described])


def check_gpu():
    """The library's own message if there is no GPU, no driver or no compiler."""
    graph = Graph()
    x = graph.source("x", (4,), False)
    graph.output(graph.apply("relu", [x], {}))
    Plan(graph, "cuda")


def eject_file(path, precision="fp32"):
    """The text, and what to print about it."""
    problem, model_text = load(path), problem_text(path)
    try:
        check_gpu()
    except ConvoyError as error:
        raise Bad(f"eject needs the GPU that the file is made for: {error}") from error
    model, inputs = build_model(problem, path)
    names = input_names(model, inputs)
    traced = Traced(model, inputs, path)
    entry = traced.entry(Settings(precision=precision, regions="all"))
    writer = Writer(traced, entry, names, inputs)
    plans = [plan_of(runner) for runner, _ in writer.regions]
    text = file_text(path, model_text, names, inputs, writer, plans, traced.depends_on_training(), precision)
    compile(text, str(path), "exec")
    launches = [launch for plan in plans for launch in plan["launches"]]
    told = [
        f"{len(plans)} region{'s' * (len(plans) != 1)}, {len(launches)} launches "
        f"({sum(launch['prepared'] for launch in launches)} only when parameters change), for {plans[0]['device']}",
        *(f"stays in PyTorch: {n.name} ({n.target}): {why}" for n, why in entry.capture.kept.items()
          if n.target is not GRAD_MODE),
    ]
    return text, told


def eject(arguments):
    parser = argparse.ArgumentParser("convoy eject", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", metavar="FILE.py", help="defines Model, get_init_inputs() and get_inputs()")
    parser.add_argument("-o", "--output", metavar="FILE.py", default="model_new.py", help="default: model_new.py")
    parser.add_argument("--precision", choices=("fp32", "tf32"), default="fp32", help="default: fp32")
    options = parsed(parser, arguments)
    try:
        text, told = eject_file(options.file, options.precision)
        Path(options.output).write_text(text)
    except (Bad, ConvoyError, OSError) as error:
        print(f"convoy: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: {len(text.splitlines())} lines; " + "\n  ".join(told))
    return 0
