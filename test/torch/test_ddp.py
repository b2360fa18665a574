"""Two gloo processes train and infer: equal to one process on all the data, loss by loss. By
DistributedDataParallel, with sharded parameters, compiled as a whole or in part, and as two stages of a pipeline."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import convoy


def network():
    torch.manual_seed(0)
    front = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.SiLU())
    return nn.Sequential(front, nn.Flatten(), nn.Linear(4 * 16, 2))


STEPS = 4


def train(model, x, y):
    """The losses of some steps."""
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def data():
    torch.manual_seed(1)
    return torch.randn(4, 3, 6, 6), torch.randn(4, 2)


def replicated():
    fast = convoy.compile(network())
    return DistributedDataParallel(fast), fast


def sharded():
    fast = convoy.compile(network())
    return fully_shard(fast, mesh=init_device_mesh("cpu", (2,))), fast


def sharded_in_part():
    model = network()
    model[0] = convoy.compile(model[0])
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,))), model[0]


def flattened():
    """Sharded the older way: no region, since what a trace sees of its parameters are pieces."""
    fast = convoy.compile(network())
    return FullyShardedDataParallel(fast, device_id=torch.device("cpu")), fast


WAYS = (replicated, sharded, sharded_in_part, flattened)


def piped(rank):
    """Losses and results of a pipeline of two stages, which the last of them has; None for the first."""
    model, cpu = network(), torch.device("cpu")
    part = convoy.compile(model[0] if rank == 0 else model[1:], regions="all")
    schedule = ScheduleGPipe(PipelineStage(part, rank, 2, cpu), 2, loss_fn=nn.functional.mse_loss)
    optimizer, x, y = torch.optim.SGD(part.parameters(), 0.1, momentum=0.9), *data()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=(parts := []))
            losses.append(torch.stack(parts).detach().mean())
        optimizer.step()
    schedule = ScheduleGPipe(PipelineStage(part, rank, 2, cpu), 2)
    with torch.no_grad():
        out = schedule.eval(x) if rank == 0 else schedule.eval()
    assert any(entry.runners for entry in part._convoy.entries.values())
    return (torch.stack(losses), out) if rank else None


def worker(rank, meeting, results):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever name and network this machine has
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    try:
        for make in WAYS:
            model, fast = make()
            x, y = data()
            losses = train(model, x[rank::2], y[rank::2])
            dist.all_reduce(losses)
            with torch.no_grad():
                out = model(x)
            entries = fast._convoy.entries.values()
            assert all(e.reason for e in entries) if make is flattened else any(e.runners for e in entries)
            results[rank, make.__name__] = losses / 2, out
        if (stage := piped(rank)) is not None:
            results[rank, "piped"] = stage
    finally:
        dist.destroy_process_group()


def test_two_processes_are_one(tmp_path):
    meeting = (tmp_path / "meeting").as_uri()  # a file: a port could be taken by somebody else meanwhile
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (meeting, results), nprocs=2)
        got = dict(results)
    model = network()
    x, y = data()
    losses = train(model, x, y)
    assert losses[-1] < losses[0] and len(got) == 2 * len(WAYS) + 1
    with torch.no_grad():
        want = model(x)
    for theirs, out in got.values():
        torch.testing.assert_close(theirs, losses, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
