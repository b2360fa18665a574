#!/bin/sh
# run.sh - `make test`: sets up, builds, runs every part, and ends with the sum, "N passed, N failed".
#
# FUZZ_SECONDS (default 20) is the time of each fuzz target, CONVOY_TEST_DEVICES (default ref,cpu) where the Python tests
# run, CONVOY_FOREIGN (default 5000) the number of chains of the foreign oracle. A part that prints no sum of its own
# counts as one test.
set -u
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0
unset MAKEFLAGS MFLAGS
export CONVOY_TEST_DEVICES="${CONVOY_TEST_DEVICES:-ref,cpu}"
jobs=-j$(nproc)

# cmocka's programs and the fuzzers are summed up by their scripts, pytest by its last line
number_of() {
    grep -E '[0-9]+ (passed|failed|error)' "$log" | tail -n 1 | grep -oE "[0-9]+ ($1)" | awk '{ n += $1 } END { print n + 0 }'
}

part() {
    title=$1
    shift
    start=$(date +%s)
    echo "== $title"
    { "$@" 2>&1; echo $? >"$log.rc"; } | tee "$log"
    rc=$(cat "$log.rc")
    rm -f "$log.rc"
    p=$(number_of passed) f=$(number_of 'failed|errors?')
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$rc" -eq 0 ] && [ "$p" -eq 0 ]; then p=1; fi
    passed=$((passed + p)) failed=$((failed + f))
    echo "== $title: $p passed, $f failed, $(($(date +%s) - start)) s"
}

pytest() {
    .venv/bin/python -m pytest -q --no-header -p no:cacheprovider "$@"
}

test/setup.sh || exit 2
echo "== build"
make -s "$jobs" all tests >/dev/null || { echo "0 passed, 1 failed"; exit 1; }
part "C programs" test/run-c.sh build
part "statics" make -s --no-print-directory check-statics
part "command" pytest test/cli
part "against PyTorch" pytest test/python
part "foreign oracle" pytest test/foreign
part "PyTorch front end" pytest test/torch
part "benchmarks" pytest test/bench
part "fuzz" make -s --no-print-directory fuzz FUZZ_SECONDS="${FUZZ_SECONDS:-20}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
