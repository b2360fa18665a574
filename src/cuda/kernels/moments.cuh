// moments.cuh - mean and sum of squared distances, merged from parts (Chan, Golub and LeVeque).
//
// A thread takes CVY_RUN values into registers, finds their mean, then their squared distances from it: two passes
// that cost no memory, so nothing cancels however large the mean is. Runs merge in double (there are few units for
// that, and conversions to it are as slow: long runs, and no divisions), in an order that depends
// only on the shape: the same bits every time. No atomics.
#ifndef CVY_MOMENTS_CUH
#define CVY_MOMENTS_CUH

#include "common.cuh"

#ifndef CENTRED
#define CENTRED 1 // 0: the mean is taken as zero (rms_norm)
#endif
constexpr int CVY_RUN = 32;

struct cvy_moments {
    double count, mean, m2;
};
static_assert(sizeof(cvy_moments) == MOMENTS_BYTES, "what the host takes memory for");

CVY_INLINE cvy_moments cvy_merge(const cvy_moments a, const cvy_moments b)
{
    cvy_moments r;
    r.count = a.count + b.count;
    // A division in double is half of the work: float32's quotient, and one step of Newton's towards the exact one.
    // What comes first is taken as it is.
    const double guess = a.count > 0 ? (double)(1.0f / (float)r.count) : 0.0;
    const double share = a.count > 0 ? b.count * (guess * (2.0 - r.count * guess)) : 1.0;
    const double delta = b.mean - a.mean;
    r.mean = CENTRED ? a.mean + delta * share : 0.0;
    r.m2 = a.m2 + b.m2 + (CENTRED ? delta * delta * a.count * share : 0.0);
    return r;
}

// Of the first `count` values (1...CVY_RUN). Sums are of distances from the first value: where all are equal they
// are 0 exactly, and so is what a norm makes of them; a mean rounded in the seventh digit, times 1 / sqrt(eps), is
// not.
CVY_INLINE cvy_moments cvy_run_moments(const float (&x)[CVY_RUN], int count)
{
    const float shift = CENTRED ? x[0] : 0.0f;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < CVY_RUN; i++) sum += i < count ? x[i] - shift : 0.0f;
    const float mean = CENTRED ? sum / (float)count : 0.0f;
#pragma unroll
    for (int i = 0; i < CVY_RUN; i++) {
        const float d = x[i] - shift - mean;
        squares += i < count ? d * d : 0.0f;
    }
    // mean was rounded: the distances sum to (sum - count * mean), not to 0, and the true mean lies that bit
    // further.
    cvy_moments r;
    r.count = count;
    const double left = (double)sum - (double)count * mean;
    r.mean =
        CENTRED ? (double)shift + (double)mean + (count == CVY_RUN ? left * (1.0 / CVY_RUN) : left / count) : 0.0;
    r.m2 = squares;
    return r;
}

CVY_INLINE cvy_moments cvy_shuffle_down(const cvy_moments m, int by)
{
    cvy_moments r;
    r.count = __shfl_down_sync(0xffffffffu, m.count, by);
    r.mean = __shfl_down_sync(0xffffffffu, m.mean, by);
    r.m2 = __shfl_down_sync(0xffffffffu, m.m2, by);
    return r;
}

// The block's moments, valid in thread 0. All THREADS threads call it.
template <int N_THREADS> CVY_INLINE cvy_moments cvy_block_moments(cvy_moments m)
{
    __shared__ cvy_moments of_warp[N_THREADS / 32];
    const cvy_moments none = {0.0, 0.0, 0.0};
    for (int by = 16; by; by /= 2) m = cvy_merge(m, cvy_shuffle_down(m, by));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
    __syncthreads();
    if (threadIdx.x >= 32) return m;
    m = threadIdx.x < N_THREADS / 32 ? of_warp[threadIdx.x] : none;
    for (int by = 16; by; by /= 2) m = by < N_THREADS / 32 ? cvy_merge(m, cvy_shuffle_down(m, by)) : m;
    return m;
}

// [slice][3]: mean, 1 / deviation, and what rounding the mean to float left over.
CVY_INLINE void cvy_store_stats(float *stats, const cvy_moments m, double eps)
{
    const float mean = (float)m.mean;
    stats[0] = mean;
    stats[1] = (float)(1.0 / sqrt(m.m2 / m.count + eps));
    stats[2] = (float)(m.mean - (double)mean);
}

#endif
