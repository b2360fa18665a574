"""Compiling beforehand: several processes, each taking the next chain of a peer until none is left or the time is up.

They leave machine code in the caches that `env` names. What fails here fails again where it is measured, and is told
there; a process that hangs is ended.
"""

import queue
import threading
import time

from process import Worker

SLOWEST_FIRST = ("torch.compile max-autotune", "torch.compile", "convoy")


def tasks(rows):
    """[(peer, chain, precisions)]. One process takes both precisions: they share kernels, unless those are autotuned."""
    found = {}
    for row in rows:
        peer, apart = row["peer"], "autotune" in row["peer"]
        if not peer.startswith("torch eager"):
            found.setdefault((peer, row["chain"], apart and row["precision"]), []).append(row["precision"])
    place = {key: next(i for i, name in enumerate(SLOWEST_FIRST) if key[0].startswith(name)) for key in found}
    return [(*key[:2], found[key]) for key in sorted(found, key=place.get)]


class Warmer(threading.Thread):
    """One process and what it has compiled."""

    def __init__(self, command, env, todo, end, row_seconds):
        super().__init__(daemon=True)  # an interrupted run does not wait for compilers
        self.command, self.env, self.todo, self.end, self.row_seconds = command, env, todo, end, row_seconds
        self.compiled = 0
        self.start()

    def left(self):
        return self.end - time.monotonic()

    def next_task(self):
        try:
            return self.todo.get_nowait() if self.left() > 0 else None
        except queue.Empty:
            return None

    def run(self):
        worker = None
        while task := self.next_task():
            peer, chain, precisions = task
            for precision in precisions:
                worker = worker or Worker(self.command, self.env, max(self.left(), 0))
                if self.left() <= 0 or "versions" not in worker.hello:
                    break
                answer = worker.ask({"peer": peer, "chain": chain, "precision": precision},
                                    min(self.row_seconds, self.left()))
                self.compiled += "error" not in answer
                if answer.get("dead"):
                    worker.close()
                    worker = None
        if worker:
            worker.close()


def all(program, env, rows, jobs, seconds, row_seconds):
    """Compiles what the rows need; says how much of it there was time for."""
    start, todo, wanted = time.monotonic(), queue.SimpleQueue(), tasks(rows)
    for task in wanted:
        todo.put(task)
    warmers = [Warmer([*program, "warm"], env, todo, start + seconds, row_seconds)
               for _ in range(min(jobs, len(wanted)))]
    for warmer in warmers:
        warmer.join()
    return {"wanted": sum(len(precisions) for *_, precisions in wanted), "jobs": len(warmers),
            "compiled": sum(w.compiled for w in warmers), "seconds": round(time.monotonic() - start, 1)}
