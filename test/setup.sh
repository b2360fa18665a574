#!/bin/sh
# setup.sh - installs what the tests need besides a C compiler: cmocka, clang, clang-format, Chromium (for the page of
# `convoy report`), a compiler and an emulator for AArch64, and a Python virtual environment. If it cannot install
# packages, it says which are missing. `setup.sh c` leaves out Python; `setup.sh bench` installs the Python packages of
# `make bench` instead.
set -eu
cd "$(dirname "$0")/.."

has_header() {
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <setjmp.h>\n#include <%s>\n' "$1" |
        ${CC:-cc} -E - >/dev/null 2>&1
}
# libFuzzer and the sanitizers' runtimes are in a separate package
has_fuzzer() {
    printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 9; }\n' |
        clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null
}
has_venv() {
    python3 -c 'import venv, ensurepip' 2>/dev/null
}

# torch.compile, one of the peers of `make bench`, writes C++ against Python's headers
has_python_header() {
    python3 -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_paths()["include"], "Python.h"))' 2>/dev/null
}

missing=
[ "${1:-}" = c ] || has_venv || missing="$missing python3-venv"
if [ "${1:-}" = bench ]; then
    command -v g++ >/dev/null || missing="$missing g++"
    has_python_header || missing="$missing python3-dev"
else
    has_header cmocka.h || missing="$missing libcmocka-dev"
    command -v clang >/dev/null || missing="$missing clang"
    command -v clang-format >/dev/null || missing="$missing clang-format"
    [ "${1:-}" = c ] || command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing="$missing chromium"
    command -v g++ >/dev/null || missing="$missing g++"
    command -v cmake >/dev/null || missing="$missing cmake"
    command -v aarch64-linux-gnu-gcc >/dev/null || missing="$missing gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
    command -v qemu-aarch64 >/dev/null || missing="$missing qemu-user"
fi

install_packages() {
    if [ "$(id -u)" = 0 ]; then
        as_root=
    elif sudo -n true 2>/dev/null; then
        as_root='sudo -n'
    else
        as_root=no
    fi
    if [ "$as_root" = no ] || ! command -v apt-get >/dev/null; then
        echo "setup: please install these missing packages (Debian names): $*" >&2
        exit 2
    fi
    echo "setup: installing $*"
    $as_root apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# shellcheck disable=SC2086 # one word per package
[ -z "$missing" ] || install_packages $missing
[ "${1:-}" = bench ] || has_fuzzer || install_packages "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev"
[ "${1:-}" = c ] && exit 0

# A virtual environment is made again when its pinned versions change.
make_venv() { # folder, requirements
    cmp -s "$2" "$1/requirements.txt" && return
    echo "setup: installing the Python packages of $2 into $1 (this can take minutes, because PyTorch is large)"
    [ -x "$1/bin/python" ] || python3 -m venv "$1"
    "$1/bin/python" -m pip install -q --disable-pip-version-check -r "$2"
    cp "$2" "$1/requirements.txt"
}

if [ "${1:-}" = bench ]; then
    make_venv .venv-bench bench/suites/requirements.txt
else
    make_venv .venv test/requirements.txt
fi
