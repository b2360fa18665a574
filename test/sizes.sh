#!/bin/sh
# sizes.sh - functions over 80 lines and files over 500 in src/, which CONTRIBUTING.md asks to stop at.
#
# A function is what stands between a line that begins with its head's brace and the brace that ends it, both in the
# first column.
set -eu
cd "$(dirname "$0")/.."
bad=0

for file in $(git ls-files 'src/*.c' 'src/*.h' 'src/*.cu' 'src/*.cuh'); do
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 500 ]; then echo "$file: $lines lines, 500 at most" && bad=1; fi
    awk -v file="$file" '
        /^\{/ { start = NR }
        /^\}/ && start { if (NR - start + 1 > 80) { printf "%s:%d: a function of %d lines, 80 at most\n", file, start, NR - start + 1; bad = 1 } start = 0 }
        END { exit bad }' "$file" || bad=1
done
exit $bad
