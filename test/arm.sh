#!/bin/sh
# arm.sh BUILD - the AArch64 build on this machine, by qemu: the command checks chains that reach every CPU kernel
# against float64, on ordinary data and on data with NaN, infinities, -0 and denormals. One thread: not every machine lets
# qemu start threads.
set -u
build=$1
run="timeout -s KILL 60 qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CVY_THREADS=1
failed=0 passed=0

fail() {
    echo "  FAILED: $*"
    failed=$((failed + 1))
}

check() { # instruction set, chain, options
    isa=$1
    shift
    if CVY_ISA=$isa $run "$build/convoy" check "$@" --device cpu --threads 1 >/tmp/arm.$$ 2>&1 </dev/null; then
        passed=$((passed + 1))
    else
        fail "CVY_ISA=$isa convoy check $*" && sed 's/^/    /' /tmp/arm.$$
    fi
}

# direct, depthwise, patches, Winograd, products, pools, norms, softmax, reductions, every activation, half precision
while read -r chain; do
    for isa in neon portable; do check $isa "$chain"; done
    check neon "$chain" --data special
    for seed in 1 2 3; do CVY_PLAN_SEED=$seed check neon "$chain"; done # other algorithms than the cost model's choice
done <<'CHAINS'
x[2,5,13,11] | conv2d(9,3) | relu
x[1,16,19,17] | conv2d(24,3,padding=1) | group_norm(4) | silu | max_pool2d(2)
x[2,12,15,14] | conv2d(12,3,groups=12,stride=2) | batch_norm | hardswish
x[1,33,9,9] | conv2d(35,1) | layer_norm(9) | gelu
x[1,3,21,23] | conv2d(8,5,stride=2,dilation=2) | tanh | avg_pool2d(2)
x[1,4,5,6,7] | conv3d(6,3,padding=1) | mish | mean((2,3,4))
x[2,6,9,8] | conv_transpose2d(5,3,stride=2) | elu | softmax(1)
x[13,37] | linear(29) | softplus | softmax(1)
x[3,17,19] | matmul(w[3,19,23]) | logsumexp(2)
x[5,65] | layer_norm(65) | sigmoid | add(1) | log | exp | sqrt
x[2,7,11,5] | instance_norm() | selu | sum((1,3))
CHAINS
check neon 'x[2,8,17,15] | conv2d(16,3,padding=1) | group_norm(4) | relu' --dtype fp16
check neon 'x[2,8,17,15] | conv2d(16,3,padding=1) | group_norm(4) | relu' --dtype bf16

rm -f /tmp/arm.$$
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
