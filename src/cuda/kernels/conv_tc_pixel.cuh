// conv_tc_pixel.cuh - 8 channels of XVEC neighbouring pixels on their way from x to a staged plane. DIRECT:
// x's words of 16 bits are the operand's, and are put in order. Else they are float32 on the way, scaled and
// rounded to fp16, one part of it or two.
#pragma once
#include "conv_tc.cuh"

// How values are staged: (x - offset) * scale. All are powers of two, so that shift is exact. DIRECT: unchanged.
struct x_range {
    float scale, offset, shift;
    __device__ __forceinline__ void set(float factor, float off)
    {
        scale = factor, offset = off, shift = -off * factor;
    }
    __device__ __forceinline__ float of(float x) const
    {
        return SHIFTED ? fmaf(x, scale, shift) : x * scale;
    }
};

// A pixel's 16 bytes of each part.
struct pixel_parts {
    uint4 part[PARTS];
};
__device__ __forceinline__ uint4 either(bool first, const uint4 &a, const uint4 &b)
{
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}
__device__ __forceinline__ void store_pixel(char *dst, const pixel_parts &a)
{
#pragma unroll
    for (int i = 0; i < PARTS; i++) *(uint4 *)(dst + i * (XPART * 16)) = a.part[i];
}
// Two neighbouring pixels of one plane; lanes 4-7 of each 8 store them in the other order, so that 8 lanes meet 8
// different banks of 16 bytes.
__device__ __forceinline__ void store_pair(char *dst, const pixel_parts &a, const pixel_parts &b)
{
    const bool straight = !(threadIdx.x & 4);
    *(uint4 *)(dst + (straight ? 0 : 16)) = either(straight, a.part[0], b.part[0]);
    *(uint4 *)(dst + (straight ? 16 : 0)) = either(straight, b.part[0], a.part[0]);
}

#if TC_DIRECT
struct x_pack {
    u32 word[8]; // of a channel: XVEC elements
    __device__ __forceinline__ void clear(int c)
    {
        word[c] = 0;
    }
    __device__ __forceinline__ void set(int c, const X_TYPE *p)
    {
        word[c] = XVEC == 2 ? *(const u32 *)p : p->bits;
    }
    __device__ __forceinline__ void load(int c, const X_TYPE *p) // from global memory
    {
        word[c] = XVEC == 2 ? __ldg((const u32 *)p) : __ldg(&p->bits);
    }
    __device__ __forceinline__ pixel_parts pixel(int j, x_range) const
    {
        const u32 order = j ? 0x7632 : 0x5410;
        return {make_uint4(__byte_perm(word[0], word[1], order), __byte_perm(word[2], word[3], order),
                           __byte_perm(word[4], word[5], order), __byte_perm(word[6], word[7], order))};
    }
    __device__ __forceinline__ void put_two(char *dst, x_range range)
    {
        store_pair(dst, pixel(0, range), pixel(1, range));
    }
};
// What a thread has seen of a stage: 0 times an inf or a NaN is NaN, and stays in the sum.
struct x_seen {
    u32 sum = 0;
    __device__ __forceinline__ void add(const x_pack &v)
    {
#pragma unroll
        for (int c = 0; c < 8; c++) sum = add_zero_times(v.word[c], sum, X_TYPE());
    }
    __device__ __forceinline__ void add(const uint4 &pixel)
    {
        sum = add_zero_times(pixel.x, sum, X_TYPE()), sum = add_zero_times(pixel.y, sum, X_TYPE());
        sum = add_zero_times(pixel.z, sum, X_TYPE()), sum = add_zero_times(pixel.w, sum, X_TYPE());
    }
    __device__ __forceinline__ float largest() const // 0 or inf
    {
        return sum ? __int_as_float(0x7f800000) : 0.f;
    }
};
#else
__device__ __forceinline__ pixel_parts convert_pixel(const float (&v)[8], x_range range)
{
    u32 hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float a = range.of(v[2 * i]), b = range.of(v[2 * i + 1]);
        hi[i] = pack_f16(a, b);
        if (PARTS == 2) {
            float fa, fb;
            unpack_f16(hi[i], fa, fb);
            lo[i] = pack_f16(a - fa, b - fb);
        }
    }
    pixel_parts p;
    p.part[0] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    if (PARTS == 2) p.part[PARTS - 1] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    return p;
}
struct x_pack {
    float v[XVEC][8];
    __device__ __forceinline__ void clear(int c)
    {
#pragma unroll
        for (int j = 0; j < XVEC; j++) v[j][c] = 0.f;
    }
    __device__ __forceinline__ void set(int c, const X_TYPE *p)
    {
#pragma unroll
        for (int j = 0; j < XVEC; j++) v[j][c] = cvy_widen(p[j]);
    }
    __device__ __forceinline__ void load(int c, const X_TYPE *p) // from global memory
    {
        if constexpr (XVEC == 2) {
            float pair[2];
            cvy_get(p, pair);
            v[0][c] = pair[0], v[XVEC - 1][c] = pair[1];
        } else
            v[0][c] = cvy_get(p);
    }
    __device__ __forceinline__ pixel_parts pixel(int j, x_range range) const
    {
        return convert_pixel(v[j], range);
    }
    // One part: exchange the results, two: the values, which are fewer and die sooner.
    __device__ __forceinline__ void put_two(char *dst, x_range range)
    {
        float(&x)[8] = v[0], (&y)[8] = v[XVEC - 1];
        if constexpr (PARTS == 1) {
            store_pair(dst, convert_pixel(x, range), convert_pixel(y, range));
        } else {
            const bool straight = !(threadIdx.x & 4);
#pragma unroll
            for (int c = 0; c < 8; c++) {
                const float a = x[c], b = y[c];
                x[c] = straight ? a : b, y[c] = straight ? b : a;
            }
            store_pixel(dst + (straight ? 0 : 16), convert_pixel(x, range));
            store_pixel(dst + (straight ? 16 : 0), convert_pixel(y, range));
        }
    }
};
// What a thread has seen of a stage: the largest |x|, NaN if there was one.
struct x_seen {
    float most = 0.f;
    __device__ __forceinline__ void add(const x_pack &p)
    {
#pragma unroll
        for (int i = 0; i < 8 * XVEC; i++) most = max_nan(most, fabsf(p.v[i / 8][i % 8]));
    }
    __device__ __forceinline__ float largest() const
    {
        return most;
    }
};
#endif

// Where a pixel of the staged strip lies in its plane.
__device__ __forceinline__ char *pixel_place(char *plane, int row, int col)
{
    return plane + ((row % ST * ST + col % ST) * PHASE + row / ST * PITCH + col / ST) * 16;
}
// A pack into its plane; row, col: of the staged strip.
__device__ __forceinline__ void put_pack(char *plane, int row, int col, x_pack &v, x_range range)
{
    char *to = plane + (row % ST * ST * PHASE + row / ST * PITCH) * 16;
    if constexpr (XVEC == 2 && ST == 1)
        v.put_two(to + col * 16, range);
    else // neighbours belong to different phases
#pragma unroll
        for (int j = 0; j < XVEC; j++)
            store_pixel(to + ((col + j) % ST * PHASE + (col + j) / ST) * 16, v.pixel(j, range));
}
