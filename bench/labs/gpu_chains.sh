#!/bin/sh
# gpu_chains.sh CONVOY - blocks A, B, C and twenty other chains on this machine's GPU, in both precisions: time, error and passes.
#
# Kernels are compiled first, several plans at a time, into a cache of their own (CVY_CACHE, if set). One line per chain and
# precision: state (ok, or the exit status), ms, ms predicted, ms first run, passes, relative error, chain. Exit status 1 if one
# failed. REPEAT (default 15) timed runs each. NVRTC is looked for where wheels and toolkits put it, unless CVY_NVRTC_LIB names it.
set -u
convoy=${1:-build/convoy}
[ -n "${CVY_CACHE:-}" ] || { CVY_CACHE=$(mktemp -d); export CVY_CACHE; }
. "$(dirname "$0")/nvrtc.sh"
list=$(mktemp)
cat >"$list" <<'END'
A
B
C
x[1,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)
x[1,8,256,256] | conv2d(32,3) | sigmoid | group_norm(8)
x[64,3,224,224] | conv2d(64,7,stride=2,padding=3) | batch_norm | relu | max_pool2d(2)
x[64,64,56,56] | conv2d(64,3,padding=1) | relu
x[64,64,56,56] | conv2d(64,3,padding=1) | group_norm(32) | silu
x[32,16,128,128] | conv2d(128,3) | group_norm(4) | max_pool2d(2) | relu
x[32,24,64,64] | conv2d(100,3,stride=2) | gelu | max(1)
x[64,16,2000] | conv1d(64,5) | instance_norm | silu
x[16,8,100,100] | conv2d(16,5,padding=2) | mish | group_norm(4) | relu
x[8,3,512,512] | conv2d(32,3) | group_norm(8) | tanh
x[256,8,28,28] | conv2d(64,3) | group_norm(16) | relu | logsumexp(1)
x[128,64,7,7] | conv2d(256,1) | group_norm(32) | relu
x[2,24,130,131] | conv2d(24,7,padding=1) | sigmoid | sum(1,keepdim=True) | relu
x[64,16,64,64] | conv2d(32,3,padding=1) @c | group_norm(8) | add(@c) | relu
x[64,32,64,64] | conv2d(64,3,padding=1) | group_norm(8) | add(r[64,64,64]) | relu
x[32,8,64,64] | conv2d(48,3) | relu | mean(1)
x[32,16,57,61] | conv2d(40,3,stride=2,padding=1) | hardswish | min(1)
x[32,8,128,128] | conv2d(64,3) | group_norm(64) | max_pool2d(2) | clamp(0,1)
x[128,16,14,14] | conv2d(128,3,padding=1) | group_norm(1) | gelu
x[64,8,128,128] | conv2d(16,3) | leaky_relu(0.1) | group_norm(2) | mul(2)
END
while IFS= read -r chain; do
    for precision in tf32 fp32; do printf '%s\0%s\0' "$precision" "$chain"; done
done <"$list" | xargs -0 -n 2 -P "${JOBS:-8}" sh -c "$convoy"' plan "$2" --device cuda --precision "$1" >/dev/null || echo "no plan: $1 $2"' sh
bad=0
while IFS= read -r chain; do
    for precision in tf32 fp32; do
        line=$(timeout 20 "$convoy" bench "$chain" --device cuda --precision $precision --repeat "${REPEAT:-15}" --samples 2 --json 2>&1 </dev/null)
        state=$?
        [ $state -eq 0 ] && state=ok || bad=1
        field() { printf '%s' "$line" | tr ',{}' '\n\n\n' | sed -n "s/^ *\"$1\": *//p"; }
        if [ -n "$(field ms)" ]; then
            printf '%-4s %s %9.4f %9.4f %9.1f %s %9.2e  %s\n' "$state" $precision "$(field ms)" "$(field ms_predicted)" "$(field ms_first)" "$(field passes)" \
                "$(field rel_error)" "$chain"
        else
            printf '%-4s %s %s: %s\n' "$state" $precision "$chain" "$line"
        fi
    done
done <"$list"
rm -f "$list"
exit $bad
