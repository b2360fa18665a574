#!/bin/sh
# sizes.sh - functions over 80 lines and files over 500, which CONTRIBUTING.md asks to stop at: C and CUDA of src/ and
# bench/, and the length of Python files.
#
# A function is what is between a line that begins with its head's brace and the brace that ends it, both in the
# first column.
set -eu
cd "$(dirname "$0")/.."
bad=0

check_length() {
    lines=$(wc -l <"$1")
    if [ "$lines" -gt 500 ]; then echo "$1: $lines lines, 500 at most" && bad=1; fi
}

for file in $(git ls-files '*.py'); do check_length "$file"; done
for file in $(git ls-files 'src/*.c' 'src/*.h' 'src/*.cu' 'src/*.cuh' 'bench/*.c' 'bench/*.h' 'bench/*.cu' 'bench/*.cuh'); do
    check_length "$file"
    awk -v file="$file" '
        /^\{/ { start = NR }
        /^\}/ && start { if (NR - start + 1 > 80) { printf "%s:%d: a function of %d lines, 80 at most\n", file, start, NR - start + 1; bad = 1 } start = 0 }
        END { exit bad }' "$file" || bad=1
done
exit $bad
