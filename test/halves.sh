#!/bin/sh
# halves.sh BUILD [GRAPHS [SEED]] - random graphs in fp16 and bf16, with casts and mixed dtypes: GRAPHS (default 2,000) of each on
# the CPU engine, and as many as GPU kernels on the emulator (compute capability 8.0 and 9.0 in turn; about an hour on two
# cores for all). Prints one line for each part; ends with 1 if a graph failed. Logs stay in BUILD/halves.
set -u
build=$1 graphs=${2:-2000} seed=${3:-1} bad=0 jobs=$(nproc)
logs=$build/halves
mkdir -p "$logs"
each=$(((graphs + 2) / 3)) # of three flavours

"$build/test/fuse/test_fuse" "$each" "$seed" '*16_graphs' >"$logs/cpu.log" 2>&1 || bad=1
echo "cpu: $((3 * each)) graphs of each dtype, $(grep -c '^\[       OK' "$logs/cpu.log") of 2 dtypes without a failure"

CVY_CUDA_LIB=$(realpath "$build/test/emulate/libcuda.so.1") CVY_NVRTC_LIB=$(realpath "$build/test/emulate/libnvrtc.so.13") CVY_CACHE=off
export CVY_CUDA_LIB CVY_NVRTC_LIB CVY_CACHE
for dtype in fp16 bf16; do
    for job in $(seq 0 $((jobs - 1))); do
        CVY_EMULATE_ARCH=$((80 + job % 2 * 10)) "$build/test/gpu/chains" -d $dtype -k "$job/$jobs" -r "$each" "$seed" \
            >"$logs/$dtype.$job.log" 2>&1 &
    done
    wait
    cat "$logs/$dtype".*.log | awk -v dtype=$dtype '/ checked, / { n += $1; m += $3; ends++ } END { print "emulated, " dtype ": " n " checked, " m " failed"; exit m > 0 || ends < '"$jobs"' }' ||
        bad=1
done
exit $bad
