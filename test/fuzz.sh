#!/bin/sh
# fuzz.sh BUILD SECONDS - runs every fuzz target, beside each other, from its seeds (test/fuzz/corpus_NAME) for some seconds. What it finds
# on the way stays in BUILD/corpus_NAME; an input that breaks something is left in BUILD and named. The search starts the
# same way every time, so that tests do not depend on luck; FUZZ_SEED=0 draws another.
set -u
build=$1 seconds=$2
failed=0 passed=0
names=$(for source in test/fuzz/fuzz_*.c; do basename "$source" .c | sed 's/^fuzz_//'; done)

fuzz() { # one target; its log and its status stay in BUILD
    found=$build/corpus_$1
    mkdir -p "$found"
    set -- "$1" -max_total_time="$seconds" -timeout=120 -seed="${FUZZ_SEED:-1}" -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$build/"
    if [ -e "test/fuzz/$1.dict" ]; then set -- "$@" -dict="test/fuzz/$1.dict"; fi
    name=$1
    shift
    "$build/test/fuzz/fuzz_$name" "$@" "$found" "test/fuzz/corpus_$name" >"$build/$name.log" 2>&1
    echo $? >"$build/$name.rc"
}

for name in $names; do fuzz "$name" & done
wait
for name in $names; do
    if [ "$(cat "$build/$name.rc")" -eq 0 ]; then
        passed=$((passed + 1))
        echo "  fuzz $name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log") executions, clean"
    else
        failed=$((failed + 1))
        echo "  fuzz $name: FAILED"
        tail -n 60 "$build/$name.log" | sed 's/^/    /'
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
