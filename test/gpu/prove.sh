#!/bin/sh
# prove.sh OUTDIR [PART...] - what has to be shown on a GPU: runs the parts (default: all, in this order), leaves
# OUTDIR/PART.log of each, prints one table, and ends with 1 if a part failed.
#
#   chains     chain_list.h in both precisions under many plans, against float64, with guard bands around every buffer;
#              then every chain of the CPU engine's tests (cpu_chains.py)
#   last       the same chains, images channels last, in float32 and bf16
#   halves     the same chains, and a quarter of the random graphs, in bf16 and fp16
#   random     RANDOM_GRAPHS random graphs (default 2,000), each under the engine's plan and a random one
#   sanitize   compute-sanitizer: memcheck, racecheck, initcheck, synccheck (or those of TOOLS), all at once
#   bits       the same bits over 100 runs, on two streams, captured, at any place in the batch
#   alone      norms after convolutions on a device whose blocks may not wait for each other (alone.c)
#   first      the first call of a shape: below 2 s with an empty cache, below 50 ms from a full one
#   overhead   compiled PyTorch blocks beside the command's own times (overhead.py)
#   modules    200 random PyTorch modules against float64 (modules.py)
#   eject      ejected files bit for bit against convoy.compile() (eject.py)
#   times      some chains, timed
#   scaling    blocks A, B and C on 1, 2, 4, ... CPU threads (bench/suites/scaling.py)
#
# BUILD (default build) is the folder of `make all BUILD/test/gpu/chains`; GPU_PYTHON (default python3) an interpreter
# with PyTorch; JOBS (default: the cores, less a quarter) how many processes share a part; SEED the first random graph's;
# CVY_CACHE where kernels are kept (default: a folder beside other temporary files, which a second run finds again).
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 2
parts="chains last halves random sanitize bits alone first overhead modules eject times scaling"

limit_of() { # seconds that a part may take
    case $1 in
    halves) echo 500 ;;
    random) echo 600 ;; # 2,000 graphs are 12,000 kernels to compile
    sanitize) echo 400 ;;
    chains | last) echo 280 ;;
    eject) echo 300 ;;
    *) echo 180 ;;
    esac
}

# ---- the driver: one process for each part, so that its time can be limited ----

if [ "${PROVE_PART:-}" = "" ]; then
    [ $# -gt 0 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
    mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
    shift
    table="$out/table.txt" bad=0
    : >"$table"
    # shellcheck disable=SC2086 # parts are words
    [ $# -gt 0 ] || set -- $parts
    for part in "$@"; do
        start=$(date +%s.%N)
        PROVE_PART=$part PROVE_OUT=$out timeout -k 10 "$(limit_of "$part")" "$0" >"$out/$part.log" 2>&1
        rc=$?
        result=ok
        [ $rc -eq 0 ] || { result=FAILED bad=1; }
        [ $rc -ne 124 ] || result=TIMEOUT
        printf '%-9s %-8s %6.1f s  %s\n' "$part" "$result" "$(echo "$(date +%s.%N) $start" | awk '{ print $1 - $2 }')" \
            "$(tail -n 1 "$out/$part.log")" | tee -a "$table"
    done
    exit $bad
fi

# ---- inside a part ----

. bench/labs/nvrtc.sh
part=$PROVE_PART out=$PROVE_OUT
build=${BUILD:-build}
case $build in /*) ;; *) build=$root/$build ;; esac
chains=$build/test/gpu/chains
cores=$(nproc)
jobs=${JOBS:-$((cores - cores / 4))}
python=${GPU_PYTHON:-python3}
tools=${TOOLS:-memcheck racecheck initcheck synccheck}
export CONVOY_LIBRARY="$build/libconvoy.so" CVY_CACHE="${CVY_CACHE:-${TMPDIR:-/tmp}/convoy-prove}"
mkdir -p "$CVY_CACHE"

# share NAME N RUNNER ARGUMENTS...: N processes of `RUNNER chains -k I/N ARGUMENTS`, each with a log NAME.I
share() {
    name=$1 n=$2 runner=$3 i=0
    shift 3
    while [ "$i" -lt "$n" ]; do
        # shellcheck disable=SC2086 # the runner is words
        $runner "$chains" -k "$i/$n" "$@" >"$out/$name.$i" 2>&1 &
        i=$((i + 1))
    done
    wait
}

# told NAME N WHAT: the logs of a share, and the sum of their last lines; fails where one of them failed or died
told() {
    cat "$out/$1".[0-9]* | grep -v ' checked, '
    cat "$out/$1".[0-9]* | awk -v n="$2" -v what="$3" '
        / checked, [0-9]+ failed$/ { done++; checked += $1; failed += $3 }
        END { printf "%s: %d checked, %d failed", what, checked, failed
              if (done < n) printf ", %d of %d processes died", n - done, n
              print ""; exit failed > 0 || done < n || checked == 0 }'
    rc=$?
    rm -f "$out/$1".[0-9]*
    return $rc
}

part_chains() {
    share chains "$jobs" ""
    told chains "$jobs" "chains" || return 1
    share chains 5 "" -g
    told chains 5 "chains that fill the device" || return 1
    "$python" test/gpu/cpu_chains.py >"$out/cpu-chains.txt" || return 1
    share chains "$jobs" "" -c "$out/cpu-chains.txt"
    told chains "$jobs" "chains, and those of the CPU engine's tests"
}

part_last() {
    share last "$jobs" "" -n
    told last "$jobs" "chains, images channels last" || return 1
    share last "$jobs" "" -d bf16 -n
    told last "$jobs" "chains, images channels last, in bf16"
}

part_halves() {
    for dtype in bf16 fp16; do
        share "$dtype" "$jobs" "" -d "$dtype"
        told "$dtype" "$jobs" "chains in $dtype" || return 1
        share "$dtype" "$jobs" "" -d "$dtype" -r $(((${RANDOM_GRAPHS:-2000} + 11) / 12)) "${SEED:-1}"
        told "$dtype" "$jobs" "random graphs in $dtype" || return 1
    done
}

part_random() {
    share random "$jobs" "" -r $(((${RANDOM_GRAPHS:-2000} + 2) / 3)) "${SEED:-1}"
    told random "$jobs" "random graphs"
}

# Every kernel is compiled, and every chain checked, before the sanitizers come: they have the device for themselves.
part_sanitize() {
    # shellcheck disable=SC2086 # tools are words
    set -- $tools
    shares=$(((cores + $# - 1) / $#)) failed=
    command -v compute-sanitizer >/dev/null || PATH=$PATH:/usr/local/cuda/bin
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 1; }
    compute-sanitizer --version | tail -n 1
    lanes=-DTC_ARRIVALS=32 # racecheck follows threads: every lane hands over for itself (conv_tc.cuh)
    CVY_NVRTC_OPTION=$lanes share plain "$jobs" "" -s
    share plain "$jobs" "" -s
    told plain "$jobs" "chains without a sanitizer" || failed=" the chains themselves"
    for tool in $tools; do
        option=
        case $tool in # mbarriers are not counted by themselves where no nvcc compiled them
        memcheck) more="--padding 512" ;;
        initcheck) more= ;;
        synccheck) more="--num-cuda-barriers 64" ;;
        racecheck) more="--num-cuda-barriers 64" option=$lanes ;;
        esac
        CVY_NVRTC_OPTION=$option share "$tool" "$shares" "compute-sanitizer --tool $tool --error-exitcode 99 --print-limit 20 $more" -s &
    done
    wait
    for tool in $tools; do
        cat "$out/$tool".[0-9]* >"$out/$tool.log"
        clean=$(grep -c 'SUMMARY: 0 \(errors\|hazards\)' "$out/$tool.log")
        sed -n "s/^========= .*SUMMARY: /$tool: /p" "$out/$tool.log" | sort | uniq -c
        told "$tool" "$shares" "chains under $tool" >"$out/told" && [ "$clean" -eq "$shares" ] || failed="$failed $tool"
        tail -n 1 "$out/told"
        grep '^========= \(Error\|Warning\|Invalid\|Uninit\|Barrier\|    .* at \)' "$out/$tool.log" | head -n 24
    done
    rm -f "$out/told"
    if [ -z "$failed" ]; then echo "0 errors: $tools"; else echo "not clean:$failed"; fi
    [ -z "$failed" ]
}

part_bits() {
    share bits 3 "" -b
    told bits 3 "blocks, 100 runs, two streams, captured" || return 1
    share places "$jobs" "" -m
    told places "$jobs" "chains, samples at any place in the batch"
}

# Norms after convolutions, with every kind of sink: none of their passes may be one launch.
part_alone() {
    "${CC:-cc}" -shared -fPIC -Wall -Wextra -Werror -o "$out/libalone.so" test/gpu/alone.c -ldl || return 1
    export CVY_CUDA_LIB="$out/libalone.so"
    launched=$("$build/convoy" plan B --device cuda | grep -c 'kernel conv_tc_f32_\(stats\|finish\)')
    echo "block B: $launched launches of its pass"
    share alone 6 "" 'x[40,8,20,24] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)' \
        'x[10,8,40,130] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)' \
        'x[24,8,20,24] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)' \
        'x[5,24,19,23] | conv2d(48,5,stride=2,padding=2) | group_norm(3) | add(r[48,10,12]) | relu' \
        'x[2,128,9,9] | conv2d(128,3) | group_norm(8) | silu' \
        'x[3,8,20,24] | conv2d(96,3) @c | mul(s[96,1,1]) | group_norm(8) | add(@c) | relu'
    told alone 6 "chains, launched apart" && [ "$launched" -eq 2 ]
}

# One line for each call: the chain's number or text, cold and warm, each in a process of its own.
first_lines() {
    for precision in fp32 tf32; do
        for which in 0/3 1/3 2/3; do
            rm -rf "$out/first-cache"
            for state in cold warm; do
                CVY_CACHE="$out/first-cache" "$chains" -k $which -p $precision -f | sed -n "s/ s: plan/ $state s: plan/p"
            done
        done
    done
    for chain in 'x[64,64,56,56] | conv2d(64,3,padding=1) | relu' 'x[64,16,64,64] | conv2d(32,3,padding=1) @c | group_norm(8) | add(@c) | relu' \
        'x[64,128,56,56] | conv2d(128,3,padding=1,groups=128) | relu' 'x[4096,1024] | linear(1024) | gelu | layer_norm(1024)' \
        'x[8192,8192] | softmax(1)'; do
        rm -rf "$out/first-cache"
        for state in cold warm; do
            CVY_CACHE="$out/first-cache" "$chains" -f "$chain" | sed -n "s/ s: plan/ $state s: plan/p"
        done
    done
    rm -rf "$out/first-cache"
}

part_first() {
    first_lines | tee "$out/first.txt"
    awk '{ n[$2]++; if ($1 > most[$2]) most[$2] = $1 }
        END { printf "cold %.3f s, from the cache %.4f s at most, of %d chains\n", most["cold"], most["warm"], n["warm"]
              exit most["cold"] >= 2 || most["warm"] >= 0.05 || n["cold"] < 11 || n["warm"] < 11 }' "$out/first.txt"
}

part_overhead() {
    CONVOY="$build/convoy" "$python" test/gpu/overhead.py
}

part_modules() {
    "$python" test/gpu/modules.py
}

part_eject() {
    "$python" test/gpu/eject.py >"$out/eject.txt" 2>&1
    rc=$?
    cat "$out/eject.txt"
    echo "$(grep -c 'same bits' "$out/eject.txt") comparisons with the same bits, $(grep -c DIFFERS "$out/eject.txt") without"
    return $rc
}

part_times() {
    "$chains" -t
    "$chains" -p fp32 -t 'x[128,8,128,128] | conv2d(64,3)' 'x[128,8,256,256] | conv2d(32,3)' 'x[128,64,126,126] | relu' \
        'x[64,256,28,28] | conv2d(256,3,padding=1) | relu' 'x[64,256,56,56] | conv2d(64,1) | relu' \
        'x[64,128,56,56] | conv2d(128,3,padding=1,groups=128) | relu' \
        'x[64,64,28,28] | conv_transpose2d(64,4,stride=2,padding=1)' 'x[4096,4096] | linear(4096)' \
        'x[8192,8192] | softmax(1)' 'x[64,256,56,56] | mean((2,3))'
}

part_scaling() {
    "$python" bench/suites/scaling.py --convoy "$build/convoy" --out "$out/cpu-threads.json"
}

case " $parts " in
*" $part "*) "part_$part" ;;
*) echo "no such part: $part"; exit 2 ;;
esac
