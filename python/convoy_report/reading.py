"""The files of bench/results, and what `convoy bench --json` wrote, as runs: a machine, versions, a command, rows by peer."""

import datetime
import json
from pathlib import Path

from .cases import OURS, RIVAL, UNFUSED, cases_of

NAMES = {"convoy": OURS, "eager": "torch eager", "compile": RIVAL}
FOLDERS = ("", "diffusion", "networks", "never")  # of bench/results


def timed(told, path):
    """What `convoy bench --json` wrote, of a chain or of a problem file, as a run of a few rows."""
    changed = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.timezone.utc).isoformat(timespec="seconds")
    common = {"device": told["device"], "precision": told["precision"], "threads": told["threads"]}
    if "file" in told:
        rows = [common | {"chain": told["file"], "peer": NAMES[p], "ms": ms} for p, ms in told["ms"].items()]
        rows[-1] |= {"max_abs_error": told["errors"][0]["max_abs"], "busy": told.get("busy", False)}
        command = f"convoy bench {told['file']} --json"
    else:
        kept = ("ms", "ms_min", "max_abs_error", "rel_error", "runs", "passes", "busy")
        rows = [common | {"chain": told["chain"], "peer": OURS} | {k: told.get(k) for k in kept}]
        if "unfused_ms" in told:
            rows.append(common | {"chain": told["chain"], "peer": UNFUSED, "ms": told["unfused_ms"]})
        command = f"convoy bench '{told['chain']}' --json"
    versions = {name: told[key] for name, key in (("convoy", "version"), ("torch", "torch")) if key in told}
    machine = {"name": told["machine"]} | {k: told[k] for k in ("peak_gflops", "peak_gbps") if told.get(k)}
    return {"date": told.get("date", changed), "machine": machine, "versions": versions, "command": command, "rows": rows}


def diffusion(told):
    """What bench/suites/diffusion.py wrote: tensors of a block are contiguous or channels_last."""
    def peer(name):
        *library, layout = name.split()
        return NAMES[library[-1]] + (" channels_last" if layout == "channels_last" else "")

    rows = [{"device": "cuda", "precision": r["dtype"], "series": "diffusion", "size": r["block"], "peer": peer(r["row"]),
             "ms": r["ms"], "rel_error": r["error"]} for r in told["rows"]]
    name, *versions = told["machine"].split(", ")
    return told | {"machine": {"name": name}, "versions": dict(v.lower().replace("pytorch", "torch").split() for v in versions), "rows": rows}


def modules(told):
    """The results of bench/modules/never_slower.py: modules in eager PyTorch and through convoy.compile."""
    device = "cpu" if "--device cpu" in told["command"] else "cuda"
    common = {"device": device, "precision": "fp32", "series": "module", "threads": told["threads"]}
    rows = [common | {"size": r["case"], "peer": peer, "ms": r[key], "rel_error": error} for r in told["rows"]
            for peer, key, error in (("torch eager", "eager_ms", None), (OURS, "convoy_ms", r["error"]))]
    return told | {"machine": {"name": told["device"]}, "versions": {"torch": told["torch"]}, "rows": rows}


def run_of(told, path):
    """The run that a file holds; files differ by what their rows are called."""
    if "rows" not in told and "ms" in told:
        return timed(told, path)
    first = next(iter(told.get("rows", ())), {})
    return diffusion(told) if "row" in first else modules(told) if "eager_ms" in first else told


def read(path, folder=None):
    """A file as a run; its name is that inside the folder."""
    try:
        told = json.loads(path.read_text())
    except ValueError as problem:
        raise ValueError(f"{path}: not JSON: {problem}") from problem
    run = run_of(told, path) if isinstance(told, dict) else {}
    missing = [k for k in ("date", "machine", "versions", "command", "rows") if k not in run]
    if missing:
        raise ValueError(f"{path}: no {', '.join(missing)}")
    return run | {"file": str(path.relative_to(folder or path.parent)), "path": str(path)}


def load(folder):
    folder = Path(folder)
    return cases_of([read(path, folder) for name in FOLDERS for path in sorted((folder / name).glob("*.json"))])
