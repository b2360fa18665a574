"""Every operator against PyTorch in float64, each case by its operator's name."""

import numpy as np
import pytest

from cases import BLOCKS, CASES, EMPTY, GRAPHS
from chains import OPERATORS, signature
from compare import check_arrays, check_chain, integer_tensors, random_tensors, truth
from library import OFF, Graph, operators, run

BY_OPERATOR = [pytest.param(text, id=f"{op}-{i}") for op, rows in CASES.items() for i, text in enumerate(rows)]


def test_every_operator_has_cases():
    assert set(operators()) == set(CASES) == set(OPERATORS)


@pytest.mark.parametrize("op", CASES)
def test_cases_are_of_their_operator(op):
    assert all(op in text for text in CASES[op])


@pytest.mark.parametrize("op", CASES)
def test_arguments_are_those_of_pytorch(op):
    assert operators()[op] == signature(op)


@pytest.mark.parametrize("text", BY_OPERATOR)
def test_operator(text, device):
    check_chain(text, device)


@pytest.mark.parametrize("text", EMPTY)
def test_reduction_of_nothing(text, device):
    check_chain(text, device)


@pytest.mark.parametrize("text", GRAPHS)
def test_graph(text, device):
    check_chain(text, device)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("factor", [1, 3, 0.01, -1])
def test_block(block, factor, device):
    graph = Graph(BLOCKS[block])
    arrays = random_tensors(graph)
    arrays["x"] *= np.float32(factor)
    check_arrays(BLOCKS[block], graph, arrays, device)


# No operation of these rounds whole numbers; a number with a point in the text is not whole.
EXACT = [op for op in CASES if op.startswith(("conv", "max", "min"))]
EXACT += ["linear", "matmul", "add", "sub", "mul", "sum", "relu", "relu6", "clamp", "abs", "neg", "square"]
EXACT += ["reshape", "flatten", "squeeze", "unsqueeze"]


@pytest.mark.parametrize("text", [t for op in EXACT for t in CASES[op] if "." not in t and "exp" not in t])
def test_whole_numbers_are_exact(text, device):
    """A tolerance cannot hide indexing errors if no operation rounds. Winograd's fractions do."""
    graph = Graph(text)
    arrays = integer_tensors(graph)
    for got, want in zip(run(graph, arrays, f"{device}:winograd={OFF}"), truth(text, arrays)):
        np.testing.assert_array_equal(got, want.astype(np.float32))


@pytest.mark.parametrize("norm", ["group_norm(2)", "batch_norm(True)", "instance_norm", "layer_norm((4,6,6))"])
def test_mean_far_from_zero(norm, device):
    """A channel with mean 1000 and deviation 1: E[x^2] - E[x]^2 in float32 would lose all of it."""
    text = f"x[3,4,6,6] | {norm}"
    graph = Graph(text)
    arrays = random_tensors(graph)
    arrays["x"] += np.float32(1000)
    check_arrays(text, graph, arrays, device)


@pytest.mark.parametrize("text", [p for p in BY_OPERATOR if p.id.endswith("-0")])
def test_same_bits_every_time(text, device):
    graph = Graph(text)
    arrays = random_tensors(graph)
    for a, b in zip(run(graph, arrays, device), run(graph, arrays, device)):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("text", [*BLOCKS.values(), *GRAPHS])
def test_print_reads_back(text):
    first = Graph(text)
    second = Graph(first.print())
    assert second.tensors == first.tensors
    assert second.print() == first.print()
