"""Regions as operators of PyTorch, for models that are exported or traced further.

torch.ops.convoy.program(tensors, text, settings) runs a program (program.py) on tensors; text and settings are JSON, so
an exported model is complete. Its fake function computes shapes through PyTorch's own, its backward
differentiates the same program computed by PyTorch.
"""

import functools
import json
from dataclasses import asdict

import torch

from .binding import CVY_UNSUPPORTED
from .engine import DTYPES, ConvoyError
from .program import Program, name_of
from .region import Runner, described, gradients
from .settings import Settings

MOST_RUNNERS = 256


@functools.lru_cache(maxsize=MOST_RUNNERS)
def loaded(text):
    return Program.loads(text)


@functools.lru_cache(maxsize=MOST_RUNNERS)
def runner_of(text, settings, sources, device, ambient, addresses):
    """None if the device's engine does not take it. addresses: of the parameters, so two calls with the same
    program keep what each prepared."""
    program = loaded(text)
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        fakes = [torch.empty_strided(shape, stride, dtype=dtype, device=device) for shape, stride, dtype in sources]
        outputs = described(program.evaluate(fakes))
    try:
        return Runner(program, sources, outputs, device, Settings(**json.loads(settings)))
    except ConvoyError as error:
        if error.status != CVY_UNSUPPORTED:
            raise
        return None


SCHEMA = "(Tensor[] tensors, str text, str settings) -> Tensor[]"  # in words: PyTorch 2.4 knows no list[Tensor]


@torch.library.custom_op("convoy::program", mutates_args=(), schema=SCHEMA)
def program(tensors, text, settings):
    wanted = loaded(text)
    device = tensors[wanted.order()[0]].device
    known = all(name_of(t.dtype) in DTYPES and t.device == device for t in tensors)
    ambient = Settings(**json.loads(settings)).ambient()
    addresses = tuple(t.data_ptr() for t, is_param in zip(tensors, wanted.params) if is_param)
    runner = runner_of(text, settings, described(tensors), device, ambient, addresses) if known else None
    return runner.run(tensors) if runner else [r.clone() for r in wanted.evaluate(tensors)]


@program.register_fake
def _(tensors, text, settings):
    results = loaded(text).evaluate(tensors)
    return [torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=r.device) for r in results]


def setup_context(ctx, inputs, output):
    tensors, ctx.text, _ = inputs
    ctx.save_for_backward(*tensors)


def backward(ctx, grads):
    tensors = ctx.saved_tensors
    needed = [t.requires_grad for t in tensors]
    return gradients(loaded(ctx.text), tensors, needed, grads), None, None


program.register_autograd(backward, setup_context=setup_context)


def inserter(region, settings):
    """insert(graph, sources): puts the operator into an fx graph in place of a region."""
    text, chosen = region.program.dumps(), json.dumps(asdict(settings))
    return lambda graph, sources: graph.call_function(torch.ops.convoy.program.default, (list(sources), text, chosen))
