// softmax_row.cu - softmax and log_softmax along rows that stay on chip: one reading, one exponential per value.
//
// Rows are as in held.cuh. The maximum is found without regard to NaNs: they are in the sum then, which makes
// the whole row NaN, as does an infinity that is subtracted from itself. Expected bound: memory, one read and one
// write.
//
//   prologue and epilogue space, grid: held.cuh
#ifndef LOGARITHM
#define LOGARITHM 0 // 1: log_softmax
#endif

#include "held.cuh"

struct larger {
    CVY_INLINE_MEMBER float operator()(float a, float b) const
    {
        return fmaxf(a, b);
    }
};
struct sum_of {
    CVY_INLINE_MEMBER float operator()(float a, float b) const
    {
        return a + b;
    }
};

// The values of a row, joined in four parts by each thread.
template <int TURN, class V, class J> CVY_INLINE float over_all(const cvy_row &row, float start, V value, J join)
{
    float part[4] = {start, start, start, start};
    row.look([&](float x, int of) { part[of] = join(part[of], value(x)); });
    return cvy_over_row<TURN>(join(join(part[0], part[1]), join(part[2], part[3])), join);
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    cvy_row row(a);
    row.read(a);
    const float top = over_all<0>(
        row, -CVY_INF, [](float x) { return x; }, larger());
#if LOGARITHM
    const float shift = logf(over_all<1>(
        row, 0.0f, [&](float x) { return expf(x - top); }, sum_of()));
    row.write(a, [&](float x) { return x - top - shift; });
#else
    row.change([&](float x) { return expf(x - top); });
    const float factor = 1.0f / over_all<1>(
                                    row, 0.0f, [](float x) { return x; }, sum_of());
    row.write(a, [&](float x) { return x * factor; });
#endif
}
