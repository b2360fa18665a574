#!/bin/sh
# labs.sh BUILD - the laboratories of bench/labs compile: those in C always, those in CUDA C++ where there is nvcc.
# Prints one line for each, and at the end "N passed, N failed".
set -u
cd "$(dirname "$0")/.."
build=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0

compile() { # name, command
    name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "  $name compiles"
    else
        failed=$((failed + 1))
        echo "  $name: FAILED"
        tail -n 40 "$log" | sed 's/^/    /'
    fi
}

mkdir -p "$build/bench/labs"
for source in bench/labs/*.c; do compile "$source" make -s BUILD="$build" "$build/${source%.c}"; done
for source in bench/labs/*.cu; do
    if command -v nvcc >/dev/null; then
        compile "$source" nvcc -std=c++17 -Iinclude -arch=sm_90a -c -o "$build/${source%.cu}.o" "$source"
    else
        echo "  $source: skipped, there is no nvcc"
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
