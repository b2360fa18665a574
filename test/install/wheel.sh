#!/bin/sh
# wheel.sh - `make wheel` in an environment of its own: its name, size, metadata and what auditwheel says of its platform; then
# installed and used with no compiler in reach. With .venv's PyTorch, where that is there, also convoy.compile().
# wheel.sh CROSS - the same for another machine (aarch64-linux-gnu-), used under qemu by a Python of that machine.
set -eu
cd "$(dirname "$0")/../.."
cross=${1:-}
machine=$("${cross}gcc" -dumpmachine 2>/dev/null || uname -m)
machine=${machine%%-*}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
rm -f dist/convoy-*_"$machine".whl
make -s wheel CROSS="$cross"
wheel=$(ls dist/convoy-*_"$machine".whl)
case $wheel in dist/convoy-*-py3-none-manylinux_2_*_*.whl) ;; *) echo "the name: $wheel" && exit 1 ;; esac
bytes=$(wc -c <"$wheel")
[ "$bytes" -lt 2500000 ] || { echo "$wheel has $bytes bytes" && exit 1; }
python3 -m venv "$root/venv"
pip="$root/venv/bin/python -m pip -q --disable-pip-version-check"
$pip install --target "$root/audit" auditwheel
tag=$(basename "$wheel" .whl | sed 's/.*-none-//')
PYTHONPATH="$root/audit" "$root/venv/bin/python" -m auditwheel show "$wheel" | tr '\n' ' ' >"$root/said"
grep -q "\"$tag\"" "$root/said" || { echo "auditwheel does not say $tag:" && cat "$root/said" && exit 1; }

use_here() {
    $pip install --no-deps "$wheel"
    torch=$(ls -d "$PWD"/.venv/lib/python3*/site-packages 2>/dev/null || true)
    [ -z "$torch" ] || echo "$torch" >"$(ls -d "$root"/venv/lib/python3*/site-packages)/torch.pth"
    use="$PWD/test/install/use.py"
    cd "$root"
    PATH="$root/venv/bin" HOME="$root" "$root/venv/bin/python" "$use"
    PATH="$root/venv/bin" HOME="$root" convoy demo >/dev/null
    PATH="$root/venv/bin" HOME="$root" convoy --version
}

# Without Debian's archive in reach the command of the wheel is run alone.
use_there() {
    $pip install --no-deps --platform "$tag" --only-binary=:all: --target "$root/site-packages" "$wheel"
    export CVY_THREADS=1 HOME="$root"
    triple=${cross%-}
    run="timeout -s KILL 60 qemu-$machine -L /usr/$triple"
    for isa in neon portable; do
        CVY_ISA=$isa $run "$root/site-packages/convoy/lib/convoy" check 'x[2,5,13,11] | conv2d(9,3) | group_norm(3) | relu' >/dev/null
    done
    if python=$(test/install/foreign-python.sh arm64 "$root/python"); then
        libraries="$root/python/lib/$triple:$root/python/usr/lib/$triple"
        PYTHONPATH="$root/site-packages" PYTHONHOME="$root/python/usr" $run -E LD_LIBRARY_PATH="$libraries" "$python" test/install/use.py
    else
        echo "no Python for $machine in reach: its command was run alone"
    fi
}

if [ -n "$cross" ]; then use_there; else use_here; fi
echo "$(basename "$wheel"): $bytes bytes"
