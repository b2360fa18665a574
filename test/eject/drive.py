"""drive.py FOLDER: ejects every problem file of FOLDER, and lets Convoy launch the same on a driver that notes it.

Leaves beside NAME.py: NAME.new (the ejected file), NAME.sizes (bytes of each kernel's arguments), NAME.convoy (what
cvy_plan_run() launched: each region without and with CVY_KEEP_PREPARED) and NAME.json (the regions' programs). Tensors
and workspaces are addresses that nobody looks at: see address() and recorder.c.
"""

import ctypes as C
import json
import os
import sys
from pathlib import Path

from convoy import binding as b
from convoy.eject import eject_file, plan_of
from convoy.eject_model import Traced, build_model
from convoy.engine import check
from convoy.problem import load
from convoy.region import strides_of
from convoy.settings import Settings

WORKSPACE, STREAM = 0x70000000000, 0x5EA


def address(i):
    return 0x100000000 * (i + 1)


def sizes(launch):
    views = 8 + 56 * len(launch["views"])
    if "tc" not in launch:
        return [views]
    if launch["tc"]["packs"]:
        return [8, 8, 8]
    maps = [128] * (1 + launch["tc"]["pair"])
    return [*maps, views] if launch["tc"]["product"] else [*maps, 88, views]


def run(runner):
    described = [runner.sources[i] for i in runner.program.order()] + list(runner.outputs)
    buffers = (b.cvy_buffer * len(described))()
    for i, (shape, stride, _) in enumerate(described):
        buffers[i].data, buffers[i].strides = address(i), strides_of(shape, stride)
    for flags in (0, b.CVY_KEEP_PREPARED):
        check(b.lib.cvy_plan_run(runner.plan.handle, buffers, len(buffers), WORKSPACE, runner.plan.workspace, flags,
                                 C.c_void_p(STREAM)))


def drive(path):
    text, told = eject_file(path)
    path.with_suffix(".new").write_text(text)
    model, inputs = build_model(load(path), path)
    runners = Traced(model, inputs, path).entry(Settings()).runners
    launches = {e["entry"]: sizes(e) for r in runners for e in plan_of(r)["launches"]}
    lines = [" ".join(map(str, [name, *n])) for name, n in launches.items()]
    path.with_suffix(".sizes").write_text("\n".join(lines) + "\n")
    os.environ["RECORDER_SIZES"] = str(path.with_suffix(".sizes"))
    os.environ["RECORDER_LOG"] = str(path.with_suffix(".convoy"))
    for runner in runners:
        run(runner)
    programs = [json.loads(r.program.dumps()) for r in runners]
    kept = [line for line in told if line.startswith("stays in PyTorch")]
    path.with_suffix(".json").write_text(json.dumps({"programs": programs, "kept": kept}))


if __name__ == "__main__":
    for file in sorted(Path(sys.argv[1]).glob("*.py")):
        drive(file)
