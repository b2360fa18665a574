"""Random numbers that a forward may draw: PyTorch's, Python's, NumPy's, and those of generators that a module holds.

A captured graph draws PyTorch's numbers as the forward does. It neither sets a seed nor draws any other numbers.
"""

import contextlib
import os
import random
import sys
import threading

import torch

from .reasons import Changed


def ways_of(value):
    """(how to read the state, how to put it back, how to seed) of a generator, None of anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state, value.set_state, value.manual_seed
    if isinstance(value, random.Random):
        return value.getstate, value.setstate, value.seed
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.RandomState):
        return value.get_state, value.set_state, lambda n: value.seed(n % 2**32)
    if isinstance(value, numpy.random.Generator):
        return ways_of_bits(value.bit_generator)
    return ways_of_bits(value) if isinstance(value, numpy.random.BitGenerator) else None


def ways_of_bits(source):
    def write(state):
        source.state = state

    return lambda: source.state, write, lambda n: write(type(source)(n).state)


def numbers_of_pytorch():
    """PyTorch's generators that a forward uses without naming them, on the CPU first."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        return [torch.default_generator, *torch.cuda.default_generators]
    return [torch.default_generator]


def sources_of(generators):
    """(name, its ways) of each. generators: ways of the module's own, by name."""
    found = {"Python's": (random.getstate, random.setstate, random.seed)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        there = numpy.random
        found["NumPy's"] = there.get_state, there.set_state, lambda n: there.seed(n % 2**32)
    found |= {"PyTorch's": ways_of(torch.default_generator), **generators}
    return found | {f"cuda:{i}'s": ways_of(g) for i, g in enumerate(numbers_of_pytorch()[1:])}


def alike(a, b):
    if isinstance(a, dict):
        return all(alike(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(map(alike, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bytes(a) == bytes(b) if hasattr(a, "data") else a == b


@contextlib.contextmanager
def same_random_numbers(generators):
    """Inside, every generator is in a state that nothing else would produce, so setting a seed is detected."""
    sources = sources_of(generators)
    saved = {name: read() for name, (read, _, _) in sources.items()}
    try:
        for _, _, seed in sources.values():
            seed(int.from_bytes(os.urandom(7), "little"))
        strange = {name: read() for name, (read, _, _) in sources.items()}
        yield
        found = [name for name, (read, _, _) in sources.items() if not alike(read(), strange[name])]
    finally:
        for name, (_, write, _) in sources.items():
            write(saved[name])
    if found:
        raise Changed(f"its forward sets or draws {found[0]} random numbers")


@contextlib.contextmanager
def no_chance():
    """Inside, this thread makes no generator without a seed, neither Python's nor NumPy's, and draws none of the system's random
    numbers: a captured graph would repeat them."""
    me, seed, drawn = threading.get_ident(), random.Random.seed, []

    def system(n):
        drawn.append(threading.get_ident())
        return os_urandom(n)

    def seeded(self, a=None, version=2):
        drawn.append(threading.get_ident() if a is None else 0)
        seed(self, a, version)

    os_urandom, random._urandom, os.urandom, random.Random.seed = os.urandom, system, system, seeded
    try:
        yield
    finally:
        random._urandom, os.urandom, random.Random.seed = os_urandom, os_urandom, seed
    if me in drawn:
        raise Changed("its forward draws random numbers without a seed")
