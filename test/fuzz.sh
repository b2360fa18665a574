#!/bin/sh
# fuzz.sh BUILD SECONDS - runs every fuzz target from its seeds (test/fuzz/corpus_NAME) for some seconds. What it finds
# on the way stays in BUILD/corpus_NAME; an input that breaks something is left in BUILD and named. The search starts the
# same way every time, so that tests do not depend on luck; FUZZ_SEED=0 draws another.
set -u
build=$1 seconds=$2
failed=0 passed=0

for source in test/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    name=${name#fuzz_}
    found=$build/corpus_$name
    dict=test/fuzz/$name.dict
    mkdir -p "$found"
    set -- -max_total_time="$seconds" -timeout=120 -seed="${FUZZ_SEED:-1}" -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$build/"
    if [ -e "$dict" ]; then set -- "$@" -dict="$dict"; fi
    if "$build/test/fuzz/fuzz_$name" "$@" "$found" "test/fuzz/corpus_$name" >"$build/$name.log" 2>&1; then
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
