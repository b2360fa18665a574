// conv_wide_finish.cuh - from the results of a block in shared memory through the epilogue: where they belong,
// their scales, and those that are not finite. Part of conv_wide.cu, whose block and tile it uses.
#ifndef CVY_CONV_WIDE_FINISH_CUH
#define CVY_CONV_WIDE_FINISH_CUH

// A place of the list as a pixel of the output.
struct pixel_at {
    int n, o, p, q;
    bool exists;
};

CVY_INLINE pixel_at find_pixel(const cvy_args &a, int place, int phase)
{
    constexpr int EVERY_D = TRANSPOSED ? STRIDE_D : 1, EVERY_H = TRANSPOSED ? STRIDE_H : 1,
                  EVERY_W = TRANSPOSED ? STRIDE_W : 1;
    const int inside = place % FLAT_SAMPLE;
    pixel_at at;
    at.n = place / FLAT_SAMPLE;
    at.o = inside / FLAT_PLANE * EVERY_D + phase / (EVERY_H * EVERY_W);
    at.p = inside % FLAT_PLANE / FLAT_ROW * EVERY_H + phase / EVERY_W % EVERY_H;
    at.q = inside % FLAT_ROW * EVERY_W + phase % EVERY_W;
    at.exists = at.n < a.extent && at.o < OUT_O && at.p < OUT_P && at.q < OUT_Q;
    return at;
}

// Where a tap reads along an axis. False: a transposed convolution does not meet it there.
CVY_INLINE bool find_source(wide_axis a, int out, int tap, int &at)
{
    at = TRANSPOSED ? out + a.pad - tap * a.dil : out * a.stride - a.pad + tap * a.dil;
    if (!TRANSPOSED) return true;
    const bool meets = at % a.stride == 0;
    at /= a.stride;
    return meets;
}

// The value that a channel of x has for a tap; zero in the padding.
CVY_INLINE float source_value(const cvy_args &a, int n, int c, int d, int h, int w)
{
    cvy_at at;
    at.i0 = n, at.i1 = c, at.i2 = d, at.i3 = h, at.i4 = w, at.i5 = 0;
    at.lin = ((((cvy_index)n * C_IN + c) * IN_D + d) * IN_H + h) * IN_W + w;
    return (unsigned)d < IN_D && (unsigned)h < IN_H && (unsigned)w < IN_W ? cvy_prologue(a, at) : 0.0f;
}

// One result by multiply-adds, of the block's slices: rare, so out of the way. Padding is zeros, which an
// infinite weight makes NaN; where a transposed convolution meets no source there is nothing.
static __device__ __noinline__ float sum_again(const cvy_args &a, pixel_at at, int k, int slice, int slice_end)
{
    const int end = least(slice_end * WIDE_CHANNELS, C_IN);
    const cvy_view &weights = a.t[1];
    float sum = 0.0f;
#pragma unroll 1
    for (int c = slice * WIDE_CHANNELS; c < end; c++)
#pragma unroll 1
        for (int tap = 0; tap < TAPS; tap++) {
            const int t = tap / (TAPS_R * TAPS_S), r = tap / TAPS_S % TAPS_R, s = tap % TAPS_S;
            int d, h, w;
            const bool meets = find_source(AXIS_D, at.o, t, d) && find_source(AXIS_H, at.p, r, h) &&
                               find_source(AXIS_W, at.q, s, w);
            if (!meets) continue;
            const bool inside = (unsigned)d < IN_D && (unsigned)h < IN_H && (unsigned)w < IN_W;
            if (TRANSPOSED && !inside) continue;
            const long long from =
                k * weights.s[0] + c * weights.s[1] + t * weights.s[2] + r * weights.s[3] + s * weights.s[4];
            sum = fmaf(cvy_get(cvy_as<W_TYPE>(weights) + from), source_value(a, at.n, c, d, h, w), sum);
        }
    return sum;
}

CVY_INLINE float *parts_at(const cvy_args &a, int split)
{
    return a.t[0].p + split * a.extent * (K_OUT * PLANE);
}

// The smaller factor first: neither step leaves float32's range where the result does not.
CVY_INLINE float unscaled(float v, float x_unscale, float w_unscale)
{
    return v * fminf(x_unscale, w_unscale) * fmaxf(x_unscale, w_unscale);
}

CVY_INLINE cvy_at result_at(const pixel_at &pixel, int channel)
{
    cvy_at at;
    at.i0 = pixel.n, at.i1 = channel, at.i2 = pixel.o, at.i3 = pixel.p, at.i4 = pixel.q, at.i5 = 0;
    at.lin =
        ((cvy_index)pixel.n * K_OUT + channel) * (cvy_index)PLANE + (pixel.o * OUT_P + pixel.p) * OUT_Q + pixel.q;
    return at;
}

// Results of one place and COUNT channels from `channel` on, in the epilogue's units.
template <int COUNT>
CVY_INLINE void mend_across(const cvy_args &a, const block_at &b, const pixel_at &pixel, int channel,
                            float (&v)[COUNT])
{
    bool sound = true;
#if SCALED
    const float x_unscale = a.t[4].p[pixel.n];
    const float4 *w_unscale = reinterpret_cast<const float4 *>(a.t[3].p + channel);
#pragma unroll
    for (int i = 0; i < COUNT / 4; i++) {
        const float4 four = w_unscale[i];
        const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int e = 0; e < 4; e++) v[4 * i + e] = unscaled(v[4 * i + e], x_unscale, each[e]);
    }
#endif
#pragma unroll
    for (int i = 0; i < COUNT; i++) sound = sound && fabsf(v[i]) < CVY_INF;
    if (sound) return;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (!(fabsf(v[i]) < CVY_INF) && channel + i < K_OUT)
            v[i] = sum_again(a, pixel, channel + i, b.slice, b.slice_end);
}

#if Y_LAST
// ---- results along the channels of a pixel: the result is known to lie so

constexpr int UNIT = 8; // channels of a place that a thread finishes at a time

#if SPLIT > 1
// Parts of sums lie so, too.
CVY_INLINE void finish_unit(const cvy_args &a, const block_at &b, const pixel_at &pixel, int channel,
                            const float (&v)[UNIT])
{
    const long long at =
        ((long long)(pixel.n * OUT_O + pixel.o) * OUT_P + pixel.p) * OUT_Q + pixel.q; // pixels before it
    cvy_store(parts_at(a, b.split) + at * K_OUT + channel, v);
}
#else
CVY_INLINE void finish_unit(const cvy_args &a, const block_at &, const pixel_at &pixel, int channel,
                            const float (&v)[UNIT])
{
    cvy_at all[UNIT];
#pragma unroll
    for (int i = 0; i < UNIT; i++) all[i] = result_at(pixel, channel + i);
    cvy_write(a, all, v);
}
#endif

// A thread takes UNIT channels of a place, a block all channels of some places; BATCH of them at once, so that what
// the epilogue loads is in flight together, unless one is in a gap.
CVY_INLINE void finish_pixels(const cvy_args &a, const block_at &b, const float (&results)[BN][PIXEL_PITCH])
{
    constexpr int ACROSS = BM / UNIT, STEP = 128 * GROUPS / ACROSS, BATCH = BLOCKS == 2 ? 2 : 4;
    const int k = threadIdx.x % ACROSS * UNIT, channel = b.k_first + k, phase = TRANSPOSED ? b.phase : 0;
    if (K_OUT % BM && channel >= K_OUT) return;
#pragma unroll 1
    for (int place = threadIdx.x / ACROSS; place < BN; place += BATCH * STEP) {
        pixel_at pixels[BATCH];
        float v[BATCH][UNIT];
        bool all = true;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            pixels[j] = find_pixel(a, b.first + place + j * STEP, phase);
            all = all && pixels[j].exists && place + j * STEP < BN;
        }
#pragma unroll
        for (int j = 0; j < BATCH && all; j++) {
            cvy_load(&results[place + j * STEP][k], v[j]);
            mend_across(a, b, pixels[j], channel, v[j]);
        }
#pragma unroll
        for (int j = 0; j < BATCH && all; j++) finish_unit(a, b, pixels[j], channel, v[j]);
        if (all) continue;
#pragma unroll 1
        for (int one = place; one < least(BN, place + BATCH * STEP); one += STEP) {
            const pixel_at pixel = find_pixel(a, b.first + one, phase);
            if (!pixel.exists) continue;
            cvy_load(&results[one][k], v[0]);
            mend_across(a, b, pixel, channel, v[0]);
            finish_unit(a, b, pixel, channel, v[0]);
        }
    }
}
#else
// ---- results along the pixels of a channel, or along the channels one by one

constexpr int SOME = 16; // channels that a thread finishes at a time

#if SPLIT > 1
CVY_INLINE void finish_result(const cvy_args &a, int split, const cvy_at &at, float v)
{
    parts_at(a, split)[at.lin] = v;
}
#else
CVY_INLINE void finish_result(const cvy_args &a, int, const cvy_at &at, float v)
{
    cvy_epilogue(a, at, v);
}
#endif

// A warp takes 32 places and SOME channels at a time: neighbouring lanes store neighbouring pixels.
CVY_INLINE void finish_across(const cvy_args &a, const block_at &b, const float (&results)[BM][PITCH])
{
    constexpr int ACROSS = cdiv(BN, 32);
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < ACROSS * (BM / SOME); i += WARPS) {
        const int place = i % ACROSS * 32 + threadIdx.x % 32, k = i / ACROSS * SOME, channel = b.k_first + k;
        const pixel_at pixel = find_pixel(a, b.first + place, TRANSPOSED ? b.phase : 0);
        float v[SOME];
        if (!pixel.exists || (BN % 32 && place >= BN) || (K_OUT % BM && channel >= K_OUT)) continue;
#pragma unroll
        for (int j = 0; j < SOME; j++) v[j] = results[k + j][place];
        mend_across(a, b, pixel, channel, v);
        cvy_at at = result_at(pixel, channel);
#pragma unroll
        for (int j = 0; j < SOME; j++, at.i1++, at.lin += (cvy_index)PLANE)
            if (K_OUT % SOME == 0 || channel + j < K_OUT) finish_result(a, b.split, at, v[j]);
    }
}

// One result of a lane in the epilogue's units.
CVY_INLINE float mend_along(const cvy_args &a, const block_at &b, const pixel_at &pixel, int channel, float v)
{
#if SCALED
    v = unscaled(v, a.t[4].p[pixel.n], a.t[3].p[channel]);
#endif
    return fabsf(v) < CVY_INF ? v : sum_again(a, pixel, channel, b.slice, b.slice_end);
}

// A warp takes RUN places and 32 channels at a time: neighbouring lanes store neighbouring channels. Places of one
// row differ by a step along it, and their loads are in flight at once; others come one by one.
CVY_INLINE void finish_along(const cvy_args &a, const block_at &b, const float (&results)[BM][PITCH])
{
    constexpr int ACROSS = BM / 32, RUN = 8, EVERY = TRANSPOSED ? STRIDE_W : 1;
    const int phase = TRANSPOSED ? b.phase : 0;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < ACROSS * (BN / RUN); i += WARPS) {
        const int place = i / ACROSS * RUN, k = i % ACROSS * 32 + threadIdx.x % 32, channel = b.k_first + k;
        pixel_at pixel = find_pixel(a, b.first + place, phase);
        if (K_OUT % BM && channel >= K_OUT) continue;
        if (pixel.exists && pixel.q + (RUN - 1) * EVERY < OUT_Q) {
            float v[RUN];
#pragma unroll
            for (int j = 0; j < RUN; j++, pixel.q += EVERY)
                v[j] = mend_along(a, b, pixel, channel, results[k][place + j]);
            pixel.q -= RUN * EVERY;
#pragma unroll
            for (int j = 0; j < RUN; j++, pixel.q += EVERY)
                finish_result(a, b.split, result_at(pixel, channel), v[j]);
            continue;
        }
#pragma unroll 1
        for (int j = 0; j < RUN; j++) {
            pixel = find_pixel(a, b.first + place + j, phase);
            if (!pixel.exists) continue;
            finish_result(a, b.split, result_at(pixel, channel),
                          mend_along(a, b, pixel, channel, results[k][place + j]));
        }
    }
}

// Parts of sums are contiguous, whatever the result will be.
CVY_INLINE void finish(const cvy_args &a, const block_at &b, const float (&results)[BM][PITCH])
{
    if (SRC_DENSE || SPLIT > 1 || a.t[0].s[1] != 1)
        finish_across(a, b, results);
    else
        finish_along(a, b, results);
}

#endif

#endif
