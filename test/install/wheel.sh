#!/bin/sh
# wheel.sh - `make wheel` in an environment of its own: its name, size, metadata and what auditwheel says of its platform; then
# installed and used with no compiler in reach. With .venv's PyTorch, where that is there, also convoy.compile().
set -eu
cd "$(dirname "$0")/../.."
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
rm -f dist/*.whl
make -s wheel
wheel=$(ls dist/convoy-*.whl)
case $wheel in dist/convoy-*-py3-none-manylinux_2_*_*.whl) ;; *) echo "the name: $wheel" && exit 1 ;; esac
bytes=$(wc -c <"$wheel")
[ "$bytes" -lt 2500000 ] || { echo "$wheel has $bytes bytes" && exit 1; }
python3 -m venv "$root/audit"
"$root/audit/bin/python" -m pip install -q --disable-pip-version-check auditwheel
tag=$(basename "$wheel" .whl | sed 's/.*-none-//')
"$root/audit/bin/auditwheel" show "$wheel" | tr '\n' ' ' >"$root/said"
grep -q "\"$tag\"" "$root/said" || { echo "auditwheel does not say $tag:" && cat "$root/said" && exit 1; }
python3 -m venv "$root/venv"
"$root/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$wheel"
torch=$(ls -d "$PWD"/.venv/lib/python3*/site-packages 2>/dev/null || true)
[ -z "$torch" ] || echo "$torch" >"$(ls -d "$root"/venv/lib/python3*/site-packages)/torch.pth"
cat >"$root/use.py" <<'PY'
import importlib.metadata, importlib.util, convoy
about = importlib.metadata.metadata("convoy")
assert about["Version"] == convoy.__version__ and about["License"] and about["Requires-Python"] and about["Summary"]
assert "site-packages/convoy" in convoy.__file__ and convoy.operators()
if importlib.util.find_spec("torch"):
    import torch
    from torch import nn
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()).eval()
    fast, x = convoy.compile(model), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
PY
cd "$root"
PATH="$root/venv/bin" HOME="$root" "$root/venv/bin/python" use.py
PATH="$root/venv/bin" HOME="$root" convoy demo >/dev/null
PATH="$root/venv/bin" HOME="$root" convoy --version
echo "$(basename "$wheel"): $bytes bytes"
