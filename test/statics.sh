#!/bin/sh
# statics.sh BUILD - no writable static in the library but those listed here, and no const cast away through a number.
#
# Any number of threads may plan and run at once, so what is shared by all of them is either constant or belongs to the
# process as a whole, and then has a lock, a once or atomic operations. Thread-local variables are nobody else's and
# are not counted. Casts from const to not const are found by the compiler (-Wcast-qual); a way round it leads through
# uintptr_t.
set -eu
cd "$(dirname "$0")/.."
build=$1
bad=0

# object, symbol, what guards it
LISTED='
src/util/memory.o fail_after atomic
src/util/memory.o live atomic
src/util/memory.o asked atomic
src/util/text.o c_locale once
src/util/text.o locale_once once
src/util/cache.o counter atomic
src/graph/print.o signatures once
src/graph/print.o n_signatures once
src/graph/print.o once once
src/cpu/cpuinfo.o known lock
src/cpu/cpuinfo.o lock lock
src/cpu/thread.o pool atomic
src/cpu/thread.o once once
src/cpu/openmp.o process lock
src/cuda/driver.o cuda lock
src/cuda/driver.o nvrtc lock
src/cuda/driver.o cuda_ready lock
src/cuda/driver.o nvrtc_ready lock
src/cuda/driver.o owner lock
src/cuda/driver.o lock lock
src/cuda/library.o dirs lock
src/cuda/library.o n_dirs lock
src/cuda/library.o lock lock
src/cuda/modules.o table lock
src/cuda/modules.o lock lock
src/cuda/jit.o embedded_digest once
src/cuda/jit.o once once'

# file and text of casts from a number to a pointer: addresses of the device, of a function, of a caller's record
CASTS='src/plan/repeat.c (void *)(uintptr_t)r->call[i]
src/plan/repeat.c (void *)(uintptr_t)r->call[r->n_buffers]
src/plan/repeat.c (void *)(uintptr_t)r->call[r->n_buffers + 1]
src/cpu/openmp.c (void *)(uintptr_t)r->parallel
src/cuda/measure.c (void *)(uintptr_t)at
src/cuda/tc.c (void *)(uintptr_t)x'

writable() { # "object symbol" for every object in a writable section that all threads share
    find "$build/src" -name '*.o' | LC_ALL=C sort | while read -r object; do
        objdump -t "$object" | awk -v object="${object#"$build"/}" '
            $0 ~ /[ \t]O[ \t]/ && $0 ~ /[ \t](\.data|\.bss|\*COM\*)/ && $0 !~ /\.data\.rel\.ro/ {
                sub(/\.[0-9]+$/, "", $NF); print object, $NF
            }'
    done
}

found=$(writable)
[ -n "$found" ] || { echo "statics.sh: no objects in $build/src" && exit 1; }
for each in $(echo "$found" | tr ' ' ':'); do
    case "$LISTED" in
    *"
${each%%:*} ${each##*:} "*) ;;
    *) echo "${each%%:*}: ${each##*:} can be written by every thread" && bad=1 ;;
    esac
done

for each in $(git grep -ho '[a-z_0-9]* \*)(uintptr_t)[^,;)]*' -- 'src/*.c' 'src/*.h' | tr ' ' ':'); do
    case "$CASTS" in
    *" ($(echo "$each" | tr ':' ' ')"*) ;;
    *) echo "a pointer made of a number: ($(echo "$each" | tr ':' ' ')" && bad=1 ;;
    esac
done
exit $bad
