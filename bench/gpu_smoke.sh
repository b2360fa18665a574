#!/bin/sh
# gpu_smoke.sh PROGRAM [check|time] - checks and times the CUDA engine on the GPU of this machine with test/gpu/chains.c,
# built as PROGRAM; without a second word both. NVRTC is looked for where wheels and toolkits put it, unless CVY_NVRTC_LIB
# names it. RANDOM_CHAINS (default 40) and SEED say which random chains are checked. Where GPU_PYTHON (default python3)
# has PyTorch, ejected files are compared with convoy.compile() bit for bit.
set -u
program=${1:-build/test/gpu/chains} what=${2:-all} bad=0
if [ -z "${CVY_NVRTC_LIB:-}" ]; then
    for f in $(find /usr/local/cuda*/lib64 /opt /usr/lib -name 'libnvrtc.so.1[23]' 2>/dev/null); do
        export CVY_NVRTC_LIB="$f"
        break
    done
fi
echo "NVRTC: ${CVY_NVRTC_LIB:-found by the loader}"
if [ "$what" != time ]; then
    "$program" || bad=1
    "$program" -r "${RANDOM_CHAINS:-40}" "${SEED:-1}" || bad=1
    "${GPU_PYTHON:-python3}" test/gpu/eject.py || bad=1
fi
[ "$what" = check ] || "$program" -t \
    'x[128,8,128,128] | conv2d(64,3)' \
    'x[128,8,256,256] | conv2d(32,3)' \
    'x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)' \
    'x[128,8,128,128] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)' \
    'x[128,8,256,256] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)' \
    'x[128,64,126,126] | relu' \
    'x[64,256,28,28] | conv2d(256,3,padding=1) | relu' \
    'x[64,256,56,56] | conv2d(64,1) | relu' \
    'x[64,128,56,56] | conv2d(128,3,padding=1,groups=128) | relu' \
    'x[64,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1)' \
    'x[4096,4096] | linear(4096)' \
    'x[8192,8192] | softmax(1)' \
    'x[64,256,56,56] | mean((2,3))' || bad=1
exit $bad
