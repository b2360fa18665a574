#!/bin/sh
# use.sh - installs into a folder of its own and builds against that: C and C++ by pkg-config, a CMake project, both
# libraries. What is installed carries no debug information.
set -eu
cd "$(dirname "$0")/../.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
make -s install PREFIX="$root" >/dev/null
export PKG_CONFIG_PATH="$root/lib/pkgconfig"
flags="$(pkg-config --cflags --libs convoy 2>/dev/null || echo "-I$root/include -L$root/lib -lconvoy") -Wl,-rpath,$root/lib"
# shellcheck disable=SC2086 # one word per flag
cc examples/chain.c $flags -o "$root/chain" && "$root/chain" >/dev/null
# shellcheck disable=SC2086
c++ -Wall -Wextra -Werror -Wno-missing-field-initializers test/install/main.cpp $flags -o "$root/main" && "$root/main" >/dev/null
cmake -S test/install -B "$root/cmake" -DCMAKE_PREFIX_PATH="$root" >/dev/null
cmake --build "$root/cmake" >/dev/null
"$root/cmake/shared" >/dev/null
"$root/cmake/static" >/dev/null
"$root/bin/convoy" --version
for file in "$root/bin/convoy" "$root/lib/libconvoy.so"; do
    if objdump -h "$file" | grep -q '\.debug_info'; then
        echo "$file carries debug information" && exit 1
    fi
done
