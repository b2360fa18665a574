#!/bin/sh
# run-c.sh BUILD - runs the C test programs of a build folder and every example. Prints one line per program, the
# output of those that fail, and at the end "N passed, N failed". Programs that print cmocka's summary count as many
# tests as it tells, others as one.
set -u
build=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0
# Tests of fork() start threads in the child; the thread sanitizer can follow, it only has to be told to go on.
export TSAN_OPTIONS="${TSAN_OPTIONS:-die_after_fork=0}"

sum_of() { # the numbers after a cmocka mark
    sed -n "s/^\[  $1  \] \([0-9]*\) test(s).*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'
}

run_program() {
    start=$(date +%s.%N)
    timeout 1200 "$1" >"$log" 2>&1
    rc=$?
    p=$(sum_of PASSED) f=$(sum_of FAILED)
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
    if [ "$rc" -eq 0 ] && [ "$p" -eq 0 ]; then p=1; fi
    passed=$((passed + p)) failed=$((failed + f))
    printf '  %-40s %4d passed %3d failed  %5.1f s\n' "${1#"$build"/}" "$p" "$f" \
        "$(echo "$(date +%s.%N) $start" | awk '{ print $1 - $2 }')"
    if [ "$rc" -ne 0 ]; then
        echo "  exit status $rc:"
        tail -n 60 "$log" | sed 's/^/    /'
    fi
}

for source in test/unit/*.c test/fuse/*.c test/fault/*.c examples/*.c; do
    [ -e "$source" ] || continue
    run_program "$build/${source%.c}"
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
