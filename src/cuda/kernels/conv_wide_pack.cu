// conv_wide_pack.cu - weights [K_OUT][C_IN][TAPS] (transposed: [C_IN][K_OUT][TAPS]) float32 -> words in the order
// of conv_wide.cu (conv_wide.cuh). Packed again only if parameters change.
//
//   t[0]  packed words      t[1]  unscale      t[2]  weights, strides of k, c, t, r, s
//   grid: a block of 128 threads for each of K_PAD output channels; zeros past K_OUT
//
// The scale is that of the largest finite weight. A weight that is not finite stays so: conv_wide.cu sums the
// affected results again. Weights with x's 16-bit type are packed unchanged (SCALED 0).
#include "conv_wide.cuh"
#include "weight_scale.cuh"

// The weights of an output channel, [C_IN][TAPS].
struct channel_weights {
    const cvy_view &all;
    long long first;

    CVY_INLINE_MEMBER float operator()(int i) const
    {
        const int tap = i % TAPS, t = tap / (TAPS_R * TAPS_S), r = tap / TAPS_S % TAPS_R, s = tap % TAPS_S;
        return cvy_get(cvy_as<W_TYPE>(all) + first + i / TAPS * all.s[1] + t * all.s[2] + r * all.s[3] +
                       s * all.s[4]);
    }
};

CVY_INLINE float largest_finite(const channel_weights &w)
{
    __shared__ float largest[4];
    float m = 0.0f;
    for (int i = threadIdx.x; i < C_IN * TAPS; i += PACK_THREADS)
        m = fabsf(w(i)) < CVY_INF ? fmaxf(m, fabsf(w(i))) : m;
#pragma unroll
    for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = m;
    __syncthreads();
    return fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
}

// Number of a tap within its phase along an axis.
CVY_INLINE int number_of(wide_axis a, int phase, int tap)
{
    const int m = (tap - wide_first(a, phase)) / wide_every(a);
    return TRANSPOSED ? wide_count(a, phase) - 1 - m : m;
}

// Where a tap of the filter is among the packed ones.
CVY_INLINE int packed_tap(int tap)
{
    const int t = tap / (TAPS_R * TAPS_S), r = tap / TAPS_S % TAPS_R, s = tap % TAPS_S;
    const int d = wide_phase_of(AXIS_D, t), h = wide_phase_of(AXIS_H, r), w = wide_phase_of(AXIS_W, s);
    const int phase = (d * STRIDE_H + h) * STRIDE_W + w;
    const phase_taps f = find_phase(phase);
    return taps_before(phase) + (number_of(AXIS_D, d, t) * f.r + number_of(AXIS_H, h, r)) * f.s +
           number_of(AXIS_W, w, s);
}

extern "C" __global__ void __launch_bounds__(PACK_THREADS) KERNEL_NAME(const __grid_constant__ cvy_args a)
{
    cvy_follow();
    const int k = blockIdx.x;
    const bool is = k < K_OUT;
    const channel_weights w = {a.t[2], (is ? k : 0) * a.t[2].s[0]};
    const float m = SCALED ? largest_finite(w) : 0.0f, power = m > 0.0f ? weight_power(m) : 1.0f;
    const float scale = PARTS == 1 && m > 0.0f ? power * finest<C_IN * TAPS>(w, power) : power;
    u32 *packed = reinterpret_cast<u32 *>(a.t[0].p);

    if (threadIdx.x == 0) a.t[1].p[k] = 1.0f / scale;
    for (int i = threadIdx.x; i < TAPS * C_PAD / 2; i += PACK_THREADS) { // two channels of a tap
        const int tap = i % TAPS, c = i / TAPS * 2, slice = c / WIDE_CHANNELS, in_row = c % WIDE_CHANNELS;
        const float v0 = is && c < C_IN ? w(c * TAPS + tap) * scale : 0.0f;
        const float v1 = is && c + 1 < C_IN ? w((c + 1) * TAPS + tap) * scale : 0.0f;
        const int place = (in_row / 8 ^ k % 8) * 4 + in_row % 8 / 2; // of 32 pairs of words
        const long long row = (long long)(slice * TAPS + packed_tap(tap)) * PARTS;
        u32 words[PARTS];
        pair_words(v0, v1, words);
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            packed[((row + part) * K_PAD + k) * (WIDE_CHANNELS / 2) + place] = words[part];
    }
}
