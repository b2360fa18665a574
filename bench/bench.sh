#!/bin/sh
# bench.sh [ARGUMENT...] - `make bench`: the peers of requirements.txt into .venv-bench, the library, then run.py with
# the arguments. BENCH_PYTHON names an interpreter that has (some of) the peers already: nothing is installed then.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${CONVOY_LIBRARY:-}" ]; then
    env -u MAKEFLAGS -u MFLAGS make -s -j"$(nproc)" all >/dev/null
fi
if [ -z "${BENCH_PYTHON:-}" ]; then
    BENCH_PYTHON=.venv-bench/bin/python
    if ! cmp -s bench/requirements.txt .venv-bench/requirements.txt; then
        echo "bench: Python packages of bench/requirements.txt into .venv-bench (this may take minutes)" >&2
        [ -x "$BENCH_PYTHON" ] || python3 -m venv .venv-bench
        "$BENCH_PYTHON" -m pip install -q --disable-pip-version-check -r bench/requirements.txt
        cp bench/requirements.txt .venv-bench/requirements.txt
    fi
fi
exec "$BENCH_PYTHON" bench/run.py "$@"
