"""bench/suites/gpu_worker.py on this machine's CPU with a clock that is made up: what `make gpu-bench` does, without a GPU.

STAND_IN_FAULTS makes peers fail ("torch eager=dies,convoy=refuses"): one that refuses is not there, one that dies does
so at each second row, one that is lost has no device any more after each row, one that hangs never answers. Processes that
compile for others are called "warm".
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "suites"))

import gpu_worker

PEER = sys.argv[1]
FAULT = dict(word.split("=") for word in os.environ.get("STAND_IN_FAULTS", "").split(",") if word).get(PEER)


class Cpu:
    name = "cpu"
    flushed, rows = False, 0

    def __init__(self):
        if FAULT == "refuses":
            raise OSError("there is no such thing here")

    def stream(self):
        return None

    def flush(self):
        self.flushed = True

    def time(self, run):
        assert self.flushed, "the cache is flushed before each run"
        self.flushed = False
        run()
        return 1.25

    def wait(self):
        pass

    def tidy(self):
        self.rows += 1
        if FAULT == "dies" and self.rows == 2:
            print("these are the last words", file=sys.stderr, flush=True)
            os._exit(3)
        return FAULT != "lost"

    def machine(self):
        return {"name": "stand-in", "peak_gbps": 1.0, "peak_gflops": None}

    def versions(self):
        return {"torch": "0"}


if FAULT == "hangs":
    gpu_worker.PEERS = dict.fromkeys(gpu_worker.PEERS, lambda *arguments: time.sleep(3600))
gpu_worker.main(Cpu)
