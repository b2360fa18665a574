"""bench/suites/scaling.py with a command that makes its times up: rows, table, a command that fails."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import convoy_report as report  # noqa: E402

COMMAND = """#!{python}
import json, sys
if sys.argv[1] == "--version":
    print("convoy 9.9.9")
else:
    threads = int(sys.argv[sys.argv.index("--threads") + 1])
    if threads > 4:
        sys.exit("convoy: no such threads")
    print(json.dumps({{"ms": 80 / threads, "max_abs_error": 1e-7, "machine": "some machine", "runs": 3}}))
"""


def scaling(folder, *words):
    command, out = folder / "convoy", folder / "threads.json"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "suites" / "scaling.py"), "--convoy", str(command), "--out", str(out),
                           *words], capture_output=True, text=True)
    return done, json.loads(out.read_text())


def test_rows_and_table(tmp_path):
    done, told = scaling(tmp_path, "--threads", "1,2,4", "--blocks", "A,C")
    assert done.returncode == 0, done.stderr
    assert [(r["block"], r["threads"], r["ms"]) for r in told["rows"]] == [
        ("A", 1, 80.0), ("A", 2, 40.0), ("A", 4, 20.0), ("C", 1, 80.0), ("C", 2, 40.0), ("C", 4, 20.0)]
    assert told["machine"]["name"] == "some machine" and told["versions"] == {"convoy": "convoy 9.9.9"}
    table = report.render(report.load(tmp_path), "threads-cpu-fp32")
    assert table.splitlines()[0] == "| threads, ms | 1 | 2 | 4 |"
    assert table.splitlines()[2] == "| A | 80.0 | 40.0 (2.00×) | 20.0 (4.00×) |"
    assert table.strip() in done.stdout


def test_a_command_that_fails_is_a_row_that_says_so(tmp_path):
    done, told = scaling(tmp_path, "--threads", "4,8", "--blocks", "B")
    assert done.returncode == 1
    assert told["rows"][1]["ms"] is None and told["rows"][1]["error"] == "convoy: no such threads"
    assert "| B | 20.0 |" in report.render(report.load(tmp_path), "threads-cpu-fp32")
