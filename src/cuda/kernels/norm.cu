// norm.cu - a norm in one pass: every slice stays on chip between its statistics and its epilogue.
//
// A slice is a row of held.cuh. The mean is computed first, then the squared distances from it: two passes without
// memory traffic, and nothing cancels however large the mean is. A thread sums its values in float32, four at a
// time, as distances from its first value; threads are combined in double, in an order that depends only on the
// shape: the same bits every time. Expected bound: memory, one read and one write.
//
//   CENTRED 0: the mean is taken as zero (rms_norm)
//   the epilogue's t0: (x - mean) / sqrt(variance + EPS)
//   prologue and epilogue space, grid: held.cuh
#ifndef CENTRED
#define CENTRED 1
#endif
#ifndef EPS
#define EPS 1e-5
#endif

#include "held.cuh"

struct add_doubles {
    CVY_INLINE_MEMBER double operator()(double a, double b) const
    {
        return a + b;
    }
};

// A sum in four of float32: number `of` takes one more value.
struct four_sums {
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    CVY_INLINE_MEMBER void add(float x, int of)
    {
        part[of] += x;
    }
    CVY_INLINE_MEMBER double total() const
    {
        return ((double)part[0] + (double)part[1]) + ((double)part[2] + (double)part[3]);
    }
};

// A mean in two floats: rounded to one, what is left would be times 1 / deviation.
struct norm_mean {
    float high, low;
};

// Where all values are equal, so are all sums of them the values' multiples, and the mean is their value exactly: a
// norm makes 0 of them.
CVY_INLINE norm_mean mean_of(const cvy_row &row)
{
    const float shift = row.has(0) ? row.x[0][0] : 0.0f;
    four_sums sums;
    norm_mean m;

    row.look([&](float x, int of) { sums.add(x - shift, of); });
    const double sum = cvy_over_row<0>((double)row.count() * shift + sums.total(), add_doubles());
    m.high = (float)(sum * (1.0 / ROW));
    m.low = (float)(fma(-(double)ROW, (double)m.high, sum) * (1.0 / ROW)); // exact but for its last factor
    return m;
}

// 1 / sqrt(x): float32's, then one step of Newton's in double, where that is in no danger.
CVY_INLINE float inverse_root(double x)
{
    if (!(x > 1e-30 && x < 1e30)) return (float)(1.0 / sqrt(x));
    const double r = (double)rsqrtf((float)x);
    return (float)(r * fma(-0.5 * x * r, r, 1.5));
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    cvy_row row(a);
    norm_mean m = {0.0f, 0.0f};
    four_sums squares;

    row.read(a);
    if (CENTRED) m = mean_of(row);
    row.look([&](float x, int of) {
        const float d = x - m.high - m.low;
        squares.add(d * d, of);
    });
    const double m2 = cvy_over_row<1>(squares.total(), add_doubles());
    const float scale = inverse_root(m2 * (1.0 / ROW) + EPS);
    row.write(a, [&](float x) { return (x - m.high - m.low) * scale; });
}
