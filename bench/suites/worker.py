"""One peer in its own process (their OpenMP runtimes would disturb each other in one): a task per line in, a row per line out.

A task is {"chain", "threads", "repeats", "reference"}; `reference` is a .npz with the float64 outputs of some samples.
The answer is {"ms", "ms_min", "runs", "max_abs_error", "rms_error", "rel_error", "others"} or {"error"}. `others` is how
many cores other processes kept busy while the timed runs ran: 0 on a quiet machine.
"""

import gc
import json
import os
import statistics
import sys
import time

import numpy as np

import chains
from peers import PEERS
from process import busy

LONG = 1.0  # seconds; a run of this length is repeated less often where a series is measured
LEAST = 0.1  # seconds of timed runs
MOST = 200
ENOUGH = 20.0  # seconds of a row after which nothing is measured again


def timed(run, inputs, repeats, series):
    """Seconds of each run, and the cores that others kept busy meanwhile."""
    first = time.perf_counter()
    run(0)
    run(1 % inputs)
    first = (time.perf_counter() - first) / 2
    if series and first > LONG:
        repeats = min(repeats, 3)
    everyone, mine = busy()
    start, times = time.perf_counter(), []
    while len(times) < repeats or sum(times) < LEAST and len(times) < MOST:
        begin = time.perf_counter()
        run(len(times) % inputs)
        times.append(time.perf_counter() - begin)
    elapsed = time.perf_counter() - start
    after, mine_after = busy()
    return times, max(0.0, (after - everyone - (mine_after - mine)) / max(elapsed, 0.02))


def error(run, reference):
    with np.load(reference) as known:
        samples, want = known["samples"], known["want"]
        out = run(0)
        got = np.asarray(run.floats() if hasattr(run, "floats") else out)[samples].astype(np.float64)
    off = np.abs(got - want)
    worst = float(off.max())
    return {"max_abs_error": worst, "rms_error": float(np.sqrt(np.square(off).mean())),
            "rel_error": worst / (float(np.abs(want).max()) or 1.0)}


def serve(peer, task):
    chain = chains.parse(task["chain"])
    inputs, params = chains.data_of(chain)
    start = time.perf_counter()
    run = peer.prepare(chain, inputs, params, task["threads"])
    row = error(run, task["reference"])  # also the first run, which prepares and compiles
    row["prepare_s"] = round(time.perf_counter() - start, 3)
    for attempt in range(task["patience"]):
        times, others = timed(run, len(inputs), task["repeats"], task["series"])
        if attempt == 0 or others < row["others"]:
            row |= {"ms": 1e3 * statistics.median(times), "ms_min": 1e3 * min(times), "runs": len(times),
                    "others": round(others, 3)}
        if others < 0.15 or time.perf_counter() - start > ENOUGH:
            break
        time.sleep(0.5)
    row |= getattr(run, "extra", {})
    getattr(run, "close", lambda: None)()
    return row


def main():
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like; standard output is for answers
    peer = PEERS[sys.argv[1]]()
    try:
        print(json.dumps({"versions": peer.version()}), file=answers)
    except (ImportError, OSError) as missing:
        print(json.dumps({"missing": str(missing)}), file=answers)
        return
    for line in sys.stdin:
        try:
            row = serve(peer, json.loads(line))
        except Exception as failure:  # a peer that cannot take a chain is a row that says so
            row = {"error": f"{type(failure).__name__}: {failure}".split("\n")[0][:300]}
        print(json.dumps(row), file=answers)
        gc.collect()


if __name__ == "__main__":
    main()
