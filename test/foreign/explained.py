"""What differs from PyTorch and is known to: every excuse the tests accept, each with its reason. Nothing else is."""

import re

import numpy as np

# Chains that PyTorch takes and the library refuses, by its message.
REFUSALS = {
    "only the batch may be empty": "convolutions and pools of no channels or no extent are not built",
    "padding .* leaves nothing of": "PyTorch gives an empty result; extents of results are at least 1 here",
    "output_padding .* must be smaller": "PyTorch too, but for an empty batch it does not look",
}


def infinite_weight_of_a_whole_row(case):
    """group_norm(1) of [N,C] is layer_norm, and is lowered as such. PyTorch's layer_norm multiplies what is normalised
    by its weight, its group_norm computes x*a + (bias - mean*a): of an infinite weight the one makes inf, the other NaN."""
    weights = [a for name, a in case.arrays.items() if name.endswith(".weight") and a.ndim == 1]
    return re.search(r"group_norm\(1[,)]", case.text) and any(np.isinf(w).any() for w in weights)


DIFFERENCES = [infinite_weight_of_a_whole_row]


def refused(message):
    return any(re.search(pattern, message) for pattern in REFUSALS)


def explained(case):
    return any(is_it(case) for is_it in DIFFERENCES)
