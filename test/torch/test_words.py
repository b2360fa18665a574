"""What compile(), explain() and repr() say."""

import pytest
import torch
from torch import nn

import convoy
from convoy import problem
from convoy.backend import compile_graph


def test_an_option_that_is_misspelt():
    with pytest.raises(TypeError, match="convoy.compile has no option 'precison'; did you mean 'precision'\\? it takes precision, "):
        convoy.compile(nn.ReLU(), precison="tf32")
    with pytest.raises(TypeError, match="convoy.compile has no option 'quickly'; it takes precision, .*regions"):
        convoy.compile(nn.ReLU(), quickly=True)


def test_a_value_that_is_misspelt():
    with pytest.raises(ValueError, match="convoy.compile: effort takes estimate, measure, not 'mesure'; did you mean 'measure'\\?"):
        convoy.compile(nn.ReLU(), effort="mesure")


def test_values_of_the_wrong_kind():
    for option, given in (("threads", "two"), ("threads", 0), ("winograd", "off"), ("graphs", "yes")):
        with pytest.raises(ValueError, match=f"convoy.compile: {option} takes .*, not {given!r}"):
            convoy.compile(nn.ReLU(), **{option: given})
    with pytest.raises(TypeError, match="convoy.refresh takes an nn.Module, not int"):
        convoy.refresh(3)


def test_a_variable_that_is_misspelt(monkeypatch):
    monkeypatch.setenv("CONVOY_REGIONS", "al")
    with pytest.raises(ValueError, match="CONVOY_REGIONS is 'al', expected faster or all; did you mean 'all'"):
        convoy.compile(nn.ReLU())


def test_a_variable_of_the_library_with_an_invalid_value(monkeypatch):
    """Otherwise every region would stay in PyTorch, and only explain() would say why."""
    monkeypatch.setenv("CVY_THREADS", "abc")
    with pytest.raises(convoy.ConvoyError, match="CVY_THREADS is 'abc', expected a whole number, at least 0"):
        convoy.compile(nn.ReLU())
    monkeypatch.delenv("CVY_THREADS")
    monkeypatch.setenv("CVY_ISA", "avx51")
    with pytest.raises(convoy.ConvoyError, match="CVY_ISA is 'avx51', expected portable"):
        convoy.compile(nn.ReLU())


def test_an_option_of_the_backend_that_is_misspelt():
    with pytest.raises(Exception, match="convoy.compile has no option 'precison'; did you mean 'precision'"):
        torch.compile(nn.ReLU(), backend=compile_graph, options={"precison": "tf32"})(torch.rand(2))


def test_an_option_of_bench_that_is_misspelt(capsys):
    with pytest.raises(SystemExit):
        problem.bench(["model.py", "--secnds", "1"])
    assert "unknown option '--secnds'; did you mean '--seconds'?" in capsys.readouterr().err


def test_explain_names_itself():
    with pytest.raises(TypeError, match="convoy.explain takes an nn.Module and its inputs, not builtin_function"):
        convoy.explain(torch.relu, torch.rand(3))
    with pytest.raises(TypeError, match="convoy.compile takes an nn.Module, not builtin_function"):
        convoy.compile(torch.relu)
    with pytest.raises(TypeError, match="convoy.explain: the module does not take these inputs: .*missing 1 required"):
        convoy.explain(nn.Conv2d(3, 4, 3))
    with pytest.raises(RuntimeError, match="convoy.explain: the module does not take these inputs: .*channels"):
        convoy.explain(nn.Conv2d(3, 4, 3), torch.rand(1, 5, 8, 8))


def test_a_compiled_module_shows_that_it_is():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    fast = convoy.compile(model)
    assert repr(fast) == f"convoy.compile({model!r}, precision='fp32')"
    told = repr(convoy.compile(model, precision="tf32", winograd=False))
    assert told.endswith(", precision='tf32', winograd=False)")
    assert repr(nn.Sequential(fast)).count("convoy.compile(") == 1
