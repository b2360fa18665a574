// conv_tc_halves.cuh - HALVES: a reduction over channels of finite values, tile by tile in halves.
#pragma once
#include "conv_tc_route.cuh"

// HALVES: a strip of finite values, every tile in halves: the tensor cores work on the second one while the first
// becomes results. No batch may be in flight from one tile to the next: ptxas would serialise them all.
__device__ __forceinline__ int reduce_strip(const strip_route &w, int group, int first, int o)
{
    shared_memory &s = w.memory;
    const strip_at &at = w.at;
    const lane_at &l = w.lane;
    const int slot = first % TC_STAGES;
    constexpr int RING = most(OUTS, 1);
    const int tiles = cdiv(at.cols, TILE), all = at.rows * tiles, warp = threadIdx.x / 32 % 4;
    const u32 x0 = (smem_u32(s.x) >> 4) + slot * (XSTAGE / 16), w0 = smem_u32(s.w) >> 4;
    const float2 norm[2] = {norm_of(w.norms, l.ch[0]), norm_of(w.norms, l.ch[1])};
    const value_maker<true> value(l, w.views, norm, at.n, s.unscale[slot]);
    half_tile left, right;
#pragma unroll 1
    for (int i = (group + o) % FINISH_GROUPS; i < all; i += FINISH_GROUPS) {
        const int b = (o + i) % RING, limit = at.cols - i % tiles * TILE;
        const u32 x = x0 + i / tiles * PITCH + i % tiles * TILE;
        acc_fence(left);
        acc_fence(right);
        wgmma_fence();
        multiply(left, x, w0, 0);
        multiply(right, x + HALF, w0, 0);
        mbar_wait(&s.oempty[b], ((o + i) / RING & 1) ^ 1);
        wgmma_wait<1>();
        acc_fence(left);
        put_partial(s, left, value, {b, warp, 0, limit});
        wgmma_wait<0>();
        acc_fence(right);
        put_partial(s, right, value, {b, warp, HALF, limit});
        warp_arrive(&s.ofull[b]);
    }
    return o + all;
}
