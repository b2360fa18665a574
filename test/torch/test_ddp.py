"""Two gloo processes train a step and infer: equal to one process on all the data."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import convoy


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 16, 2))


def step(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def data():
    torch.manual_seed(1)
    return torch.randn(4, 3, 6, 6), torch.randn(4, 2)


def worker(rank, meeting, results):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever name and network this machine has
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    try:
        fast = convoy.compile(network())
        model = DistributedDataParallel(fast)
        x, y = data()
        step(model, x[rank::2], y[rank::2])
        with torch.no_grad():
            out = model(x)
        assert any(entry.runners for entry in fast._convoy.entries.values())
        results[rank] = (out, {k: v.clone() for k, v in fast.state_dict().items()})
    finally:
        dist.destroy_process_group()


def test_two_processes_are_one(tmp_path):
    meeting = (tmp_path / "meeting").as_uri()  # a file: a port could be taken by somebody else meanwhile
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (meeting, results), nprocs=2)
        got = [results[0], results[1]]
    model = network()
    x, y = data()
    step(model, x, y)
    with torch.no_grad():
        want = model(x)
    for out, state in got:
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
        for key, value in model.state_dict().items():
            torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-6)
