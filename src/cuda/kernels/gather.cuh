// gather.cuh - the accumulators of reductions, one struct per kind, all with the same four functions.
//
//   take(x)    one more value          join(other)   merges two, in either order of arrival the same shape gives
//   result(n)  of n values             shuffle(by)   the gatherer of the lane `by` further on
//
// An infinity to start from is assigned in a constructor's body: nvcc shows a member's initializer, and a
// constructor's, to the host compiler as well, which has no CVY_INF (ejected files are compiled for both).
#ifndef CVY_GATHER_CUH
#define CVY_GATHER_CUH

#include "ops.cuh"

// Sums in double: as many terms as there may be cost float32 its digits.
struct cvy_gather_sum {
    double sum = 0.0;
    CVY_INLINE_MEMBER void take(float x)
    {
        sum += (double)x;
    }
    CVY_INLINE_MEMBER void join(const cvy_gather_sum &o)
    {
        sum += o.sum;
    }
    CVY_INLINE_MEMBER cvy_gather_sum shuffle(int by) const
    {
        cvy_gather_sum r;
        r.sum = __shfl_down_sync(0xffffffffu, sum, by);
        return r;
    }
    CVY_INLINE_MEMBER float result(double) const
    {
        return (float)sum;
    }
};

struct cvy_gather_mean : cvy_gather_sum {
    CVY_INLINE_MEMBER cvy_gather_mean shuffle(int by) const
    {
        cvy_gather_mean r;
        r.sum = __shfl_down_sync(0xffffffffu, sum, by);
        return r;
    }
    CVY_INLINE_MEMBER float result(double n) const
    {
        return (float)(sum / n);
    }
};

struct cvy_gather_max {
    float best;
    CVY_INLINE_MEMBER cvy_gather_max()
    {
        best = -CVY_INF;
    }
    CVY_INLINE_MEMBER void take(float x)
    {
        best = cvy_maximum(best, x);
    }
    CVY_INLINE_MEMBER void join(const cvy_gather_max &o)
    {
        take(o.best);
    }
    CVY_INLINE_MEMBER cvy_gather_max shuffle(int by) const
    {
        cvy_gather_max r;
        r.best = __shfl_down_sync(0xffffffffu, best, by);
        return r;
    }
    CVY_INLINE_MEMBER float result(double) const
    {
        return best;
    }
};

struct cvy_gather_min {
    float best;
    CVY_INLINE_MEMBER cvy_gather_min()
    {
        best = CVY_INF;
    }
    CVY_INLINE_MEMBER void take(float x)
    {
        best = cvy_minimum(best, x);
    }
    CVY_INLINE_MEMBER void join(const cvy_gather_min &o)
    {
        take(o.best);
    }
    CVY_INLINE_MEMBER cvy_gather_min shuffle(int by) const
    {
        cvy_gather_min r;
        r.best = __shfl_down_sync(0xffffffffu, best, by);
        return r;
    }
    CVY_INLINE_MEMBER float result(double) const
    {
        return best;
    }
};

// log of the sum of exponentials in one pass: the largest so far, and the sum relative to it. One exponential per
// value. Equal arguments are a case of their own, so that inf - inf is never formed: all -inf gives -inf, an
// inf gives inf, a NaN stays.
struct cvy_gather_logsumexp {
    float top, sum;
    CVY_INLINE_MEMBER cvy_gather_logsumexp()
    {
        top = -CVY_INF, sum = 0.0f;
    }
    CVY_INLINE_MEMBER void add(float x, float weight)
    {
        if (x == top) {
            sum += weight;
        } else {
            const float e = expf(-fabsf(x - top));
            const bool up = !(x < top); // a NaN becomes the top, and everything NaN after it
            sum = up ? sum * e + weight : sum + weight * e;
            top = up ? x : top;
        }
    }
    CVY_INLINE_MEMBER void take(float x)
    {
        add(x, 1.0f);
    }
    CVY_INLINE_MEMBER void join(const cvy_gather_logsumexp &o)
    {
        if (o.sum != 0.0f) add(o.top, o.sum); // one that took nothing, or nothing above -inf, changes nothing
    }
    CVY_INLINE_MEMBER cvy_gather_logsumexp shuffle(int by) const
    {
        cvy_gather_logsumexp r;
        r.top = __shfl_down_sync(0xffffffffu, top, by);
        r.sum = __shfl_down_sync(0xffffffffu, sum, by);
        return r;
    }
    CVY_INLINE_MEMBER float result(double) const
    {
        return fabsf(top) == CVY_INF && sum == sum ? top
                                                   : top + logf(sum); // a NaN that came before an inf is in sum
    }
};

// ---- of a block ----

// Joins what groups of N_LANES neighbouring threads hold; the result is in the first of each group.
template <int N_LANES, int N_THREADS, class G> CVY_INLINE void cvy_join_lanes(G &g)
{
#pragma unroll
    for (int by = (N_LANES < 32 ? N_LANES : 32) / 2; by; by /= 2) g.join(g.shuffle(by));
    if (N_LANES > 32) {
        __shared__ __align__(8) char memory[N_THREADS / 32 * sizeof(G)];
        G *of_warp = reinterpret_cast<G *>(memory);
        __syncthreads();
        if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = g;
        __syncthreads();
        if (threadIdx.x % N_LANES == 0)
            for (int w = 1; w < N_LANES / 32; w++) g.join(of_warp[threadIdx.x / 32 + w]);
    }
}

// ---- the space of a reduction: six extents, some of them reduced ----

#ifndef X1
#define X1 64
#define X2 126
#define X3 126
#define X4 1
#define X5 1
#endif
#ifndef REDUCED
#define REDUCED 2 // bit d: dimension d is reduced
#endif

#ifndef NOTHING_INSIDE
#define NOTHING_INSIDE 0 // 1: some reduced extent is 0 (its macro says 1, to divide by)
#endif

CVY_INLINE constexpr int cvy_extent(int d)
{
    return d == 1 ? X1 : d == 2 ? X2 : d == 3 ? X3 : d == 4 ? X4 : d == 5 ? X5 : 1;
}

// Element number `inside` of the reduced dimensions, number `kept` of the others.
CVY_INLINE cvy_at cvy_place(cvy_index kept, cvy_index inside)
{
    int i[6];
    cvy_at at;
#pragma unroll
    for (int d = 5; d >= 0; d--) {
        cvy_index &rest = REDUCED >> d & 1 ? inside : kept;
        i[d] = d ? (int)(rest % cvy_extent(d)) : (int)rest;
        if (d) rest /= cvy_extent(d);
    }
    at.i0 = i[0], at.i1 = i[1], at.i2 = i[2], at.i3 = i[3], at.i4 = i[4], at.i5 = i[5];
    at.lin = (((((cvy_index)i[0] * X1 + i[1]) * X2 + i[2]) * X3 + i[3]) * X4 + i[4]) * X5 + i[5];
    return at;
}

// How many elements are reduced into one, not counting dimension 0; counting it; and how many results stay.
CVY_INLINE constexpr long long cvy_inner_count()
{
    long long n = 1;
    for (int d = 1; d < 6; d++) n *= REDUCED >> d & 1 ? cvy_extent(d) : 1;
    return n;
}
CVY_INLINE long long cvy_inside_count(const cvy_args &a)
{
    return NOTHING_INSIDE ? 0 : (REDUCED & 1 ? a.extent : 1) * cvy_inner_count();
}
CVY_INLINE long long cvy_kept_count(const cvy_args &a)
{
    long long n = REDUCED & 1 ? 1 : a.extent;
    for (int d = 1; d < 6; d++) n *= REDUCED >> d & 1 ? 1 : cvy_extent(d);
    return n;
}

#endif
