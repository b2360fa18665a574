/* probe.c - what the machine can do at best: multiply-adds in registers, reading in a stream. */
#include "../simd.h"
#include "../cpuinfo.h"

enum { CHAINS = 10 }; /* latency times pipes of every processor in use is at most 10; 12 of 16 registers */

static float fma_rounds(int64_t rounds)
{
    vf acc[CHAINS], sum = v_zero();
    const vf x = v_set1(0.999f), y = v_set1(0.001f); /* converges to 1: no denormals, no overflow */
    for (int i = 0; i < CHAINS; i++) acc[i] = v_set1((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        for (int i = 0; i < CHAINS; i++) acc[i] = v_fma(acc[i], x, y);
    }
    for (int i = 0; i < CHAINS; i++) sum = v_add(sum, acc[i]);
    return v_hsum(sum);
}

static float read_all(const float *data, int64_t n)
{
    vf acc[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (int64_t i = 0; i < n; i += 4 * VL) {
        for (int j = 0; j < 4; j++) acc[j] = v_add(acc[j], v_load(data + i + j * VL));
    }
    return v_hsum(v_add(v_add(acc[0], acc[1]), v_add(acc[2], acc[3])));
}

const cpu_probe_kernels ISA(cvyi_probe) = {2 * CHAINS * VL, fma_rounds, read_all};
