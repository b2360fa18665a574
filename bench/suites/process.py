"""A peer in its own process: a task per line in, a row per line out, and never longer than its time limit.

A process that dies or does not answer in time gives a row that says so; the next task goes to a new one.
"""

import datetime
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

STARTING = 300  # seconds for the first line: importing PyTorch from a cold disk takes its time


def busy():
    """Seconds that all cores were busy, and that this process was."""
    try:
        with open("/proc/stat") as f:
            n = [int(v) for v in f.readline().split()[1:9]]
        everyone = (sum(n) - n[3] - n[4]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0, 0.0
    t = os.times()
    return everyone, t.user + t.system + t.children_user + t.children_system


class Worker:
    """`hello` is the process's first line: {"versions"} where the peer is there, else {"missing"} or {"error"}."""

    def __init__(self, command, env, starting=STARTING):
        self.log = tempfile.TemporaryFile()  # what the peer prints: the end of it says why it died
        output = None if os.environ.get("BENCH_VERBOSE") else self.log
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=env,
                                        start_new_session=True)
        self.rest = b""
        self.hello = self.read(starting)

    def line(self, seconds):
        """The next line, or None at the end of the output or of the time."""
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            got = os.read(self.process.stdout.fileno(), 1 << 16)
            if not got:
                return None
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def read(self, seconds):
        start, line = time.monotonic(), self.line(seconds)
        if line is not None:
            return json.loads(line)
        if time.monotonic() - start >= seconds:
            reason = f"no answer within {seconds:.0f} s"
        else:
            self.ended()
            reason = f"its process ended: {self.last_words()}"
        self.kill()
        return {"error": reason, "dead": True}

    def ended(self, seconds=20):
        """Waits for its end, not forever."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def last_words(self):
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"status {self.process.returncode}"

    def ask(self, task, seconds):
        try:
            self.process.stdin.write(json.dumps(task).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.read(seconds)

    def kill(self):
        """The process and those that it started: compilers, above all."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def close(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            self.ended()
        self.kill()
        self.log.close()


class Progress:
    """A progress bar on a terminal, lines in a file."""

    def __init__(self, total):
        self.total, self.done, self.start, self.counted = total, 0, time.time(), 0

    def step(self, text, measured=True):
        self.done += 1
        self.counted += measured
        left = (time.time() - self.start) / max(self.counted, 1) * (self.total - self.done)
        bar = "#" * (24 * self.done // self.total)
        line = f"[{bar:<24}] {self.done}/{self.total} {left / 60:4.1f} min left  {text}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line[:118]}", end="" if self.done < self.total else "\n", file=sys.stderr, flush=True)
        elif measured:
            print(line, file=sys.stderr, flush=True)


class Partial:
    """Rows of a run that is going on, in a file beside the results, so that an interrupted run goes on from there. What
    was measured under another mark, with another library or other options, does not count."""

    def __init__(self, path, mark, fresh):
        self.path, self.rows = path, {}
        if not fresh:
            self.rows = self.load(mark)
        if not self.rows:
            path.write_text(json.dumps({"stamp": mark}) + "\n")

    @staticmethod
    def key(row):
        return row["series"], row["size"], row["chain"], row["peer"], row["precision"]

    def load(self, mark):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        rows = {}
        for i, line in enumerate(lines):
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the line that an interruption cut
            if i == 0 and row.get("stamp") != mark:
                return {}
            if i:
                rows[self.key(row)] = row
        return rows

    def keep(self, row):
        self.rows[self.key(row)] = row
        with self.path.open("a") as f:
            f.write("\n" * (not ends_with_newline(self.path)) + json.dumps(row) + "\n")

    def finish(self):
        self.path.unlink()


def ends_with_newline(path):
    with path.open("rb") as f:
        f.seek(0, os.SEEK_END)
        if not f.tell():
            return True
        f.seek(-1, os.SEEK_END)
        return f.read() == b"\n"


def write_results(path, told):
    """One JSON file, there completely or not at all."""
    words = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(words, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        commit = None
    told = {"commit": commit, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **told}
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(told, indent=1) + "\n")
    aside.replace(path)
