#!/bin/sh
# bench.sh [ARGUMENT...] - `make bench`: the peers of requirements.txt into .venv-bench, the library, then run.py with
# the arguments. BENCH_PYTHON names an interpreter that has (some of) the peers already: nothing is installed then.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${CONVOY_LIBRARY:-}" ]; then
    env -u MAKEFLAGS -u MFLAGS make -s -j"$(nproc)" all >/dev/null
fi
if [ -z "${BENCH_PYTHON:-}" ]; then
    test/setup.sh bench >&2
    BENCH_PYTHON=.venv-bench/bin/python
fi
exec "$BENCH_PYTHON" bench/suites/run.py "$@"
