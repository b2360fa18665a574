"""Devices and hypothesis' settings for all tests.

CONVOY_TEST_DEVICES names the devices to compare with PyTorch, with options where wanted ("ref,cpu,cpu:fuse=2:seed=7", default "ref,cpu");
CONVOY_LIBRARY the library to load; CONVOY_TEST_PROFILE=long makes the random tests search on.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

# The same examples every time, so that a failure in CI is one here.
settings.register_profile(
    "ci", max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("CONVOY_TEST_PROFILE", "ci"))
torch.set_num_threads(1)

DEVICES = os.environ.get("CONVOY_TEST_DEVICES", "ref,cpu").split(",")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def pytest_configure(config):
    # PyTorch says once that it copies an input to pad it unevenly.
    config.addinivalue_line("filterwarnings", "ignore:Using padding='same':UserWarning")
