"""The package of this tree on the library that CONVOY_LIBRARY names (default: build/), and hypothesis' settings."""

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

os.environ["CONVOY_REGIONS"] = "all"  # what is tested here is what Convoy computes; test_worth.py tests the choice
ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "python", ROOT / "examples"):
    sys.path.insert(0, str(folder))
paths = [str(ROOT / "python"), os.environ.get("PYTHONPATH")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # for the processes that tests start

settings.register_profile(
    "ci", max_examples=200, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile("long", max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("CONVOY_TEST_PROFILE", "ci"))
torch.set_num_threads(1)


def pytest_collectstart(collector):
    """What a file of tests makes when it is imported is the same in every run, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_numbers():
    """Every test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


@pytest.fixture
def net():
    from small_net import Net  # here, where the paths above are known

    net = Net().eval()
    with torch.no_grad():
        net.bn.running_mean.normal_()
        net.bn.running_var.uniform_(0.5, 2)
    return net
