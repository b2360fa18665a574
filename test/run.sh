#!/bin/sh
# run.sh - `make test`: sets up, builds, runs every part, and ends with the sum, "N passed, N failed".
#
# The Python tests run concurrently with the C programs, because most of them use one core; their output comes after
# that of the C programs. FUZZ_SECONDS (default 20) is the time for each fuzz target, CONVOY_TEST_DEVICES (default
# ref,cpu) the devices of the Python tests, CONVOY_FOREIGN (default 5000) the number of chains of the foreign oracle.
# With CONVOY_TEST_LONG the tests of kernels run all combinations of chains, plans, types and architectures. A part that
# prints no sum counts as one test.
set -u
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset MAKEFLAGS MFLAGS
export CONVOY_TEST_DEVICES="${CONVOY_TEST_DEVICES:-ref,cpu}"
jobs=-j$(nproc)

# cmocka's programs and the fuzzers are summed up by their scripts, pytest by its last line
number_of() { # log, words
    grep -E '[0-9]+ (passed|failed|error)' "$1" | tail -n 1 | grep -oE "[0-9]+ ($2)" | awk '{ n += $1 } END { print n + 0 }'
}

part() {
    title=$1
    shift
    log="$folder/$title"
    start=$(date +%s)
    echo "== $title"
    { "$@" 2>&1; echo $? >"$log.rc"; } | tee "$log"
    rc=$(cat "$log.rc")
    p=$(number_of "$log" passed) f=$(number_of "$log" 'failed|errors?')
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$rc" -eq 0 ] && [ "$p" -eq 0 ]; then p=1; fi
    echo "$p $f" >>"$folder/sums"
    echo "== $title: $p passed, $f failed, $(($(date +%s) - start)) s"
}

pytest() {
    .venv/bin/python -m pytest -q --no-header -p no:cacheprovider "$@"
}

python_lane() {
    part "command" pytest test/cli
    part "against PyTorch" pytest test/python
    part "foreign oracle" pytest test/foreign
    part "PyTorch front end" pytest test/torch
    part "benchmarks" pytest test/bench
}

test/setup.sh || exit 2
echo "== build"
make -s "$jobs" all tests >/dev/null || { echo "0 passed, 1 failed"; exit 1; }
python_lane >"$folder/python" 2>&1 &
lane=$!
trap 'kill $lane 2>/dev/null; rm -rf "$folder"' EXIT
part "C programs" test/run-c.sh build
part "statics" make -s --no-print-directory check-statics
part "laboratories" test/labs.sh build
part "fuzz" make -s --no-print-directory fuzz FUZZ_SECONDS="${FUZZ_SECONDS:-20}"
echo "== waiting for the tests in Python: $(grep '^==' "$folder/python" | tail -n 1)"
wait $lane
trap 'rm -rf "$folder"' EXIT
cat "$folder/python"
awk '{ p += $1; f += $2 } END { print p + 0 " passed, " f + 0 " failed"; exit f > 0 }' "$folder/sums"
