"""Numbers for a chain's tensors. A kind of data, a seed, a tensor's name and its shape give the same numbers every time."""

import math
import zlib

import numpy as np

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-45, 1e-40, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1e30, -1e19)


def normal(r, shape):
    return r.standard_normal(shape)


def planted(r, shape):
    """A few special values among ordinary ones."""
    made = r.standard_normal(shape)
    for _ in range(int(r.integers(0, 4)) if made.size else 0):
        made.flat[r.integers(made.size)] = r.choice(SPECIAL)
    return made


# Inputs; parameters are normal numbers where only inputs are named.
KINDS = {
    "normal": normal,
    "integer": lambda r, shape: r.integers(-3, 4, shape),
    "offset": lambda r, shape: r.standard_normal(shape) + 1e3 * (1 if r.random() < 0.5 else -1),
    "tiny": lambda r, shape: r.standard_normal(shape) * 1e-30,
    "huge": lambda r, shape: r.standard_normal(shape) * 1e30,
    "denormal": lambda r, shape: r.standard_normal(shape) * 1e-40,
    "wide": lambda r, shape: r.standard_normal(shape) * 10.0 ** r.uniform(-20, 20, shape),
    "constant": lambda r, shape: np.full(shape, r.choice([0.0, -0.0, 1.0, -2.5, 1e-3, 100.0])),
    "special": planted,
}
EVERYWHERE = ("normal", "integer", "special")  # of these kinds parameters are too


def tensor(kind, seed, name, shape):
    r = np.random.default_rng([seed, zlib.crc32(f"{kind} {name}".encode()), *shape])
    is_param = name[0] == "p" or "." in name
    made = (normal if is_param and kind not in EVERYWHERE else KINDS[kind])(r, shape)
    if name.endswith(".weight") and len(shape) > 1 and kind != "integer":
        made = made / math.sqrt(max(1, math.prod(shape[1:])))
    if name.endswith(".running_var"):
        made = np.abs(made) + 0.1
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(made, np.float32)
