// ptx_wide.cuh - the functions of src/cuda/kernels/ptx_wide.cuh by the emulator; wgmma of any width is ptx.cuh's.
#pragma once

#include "ptx_product.cuh"

static inline void tensor_load(void *dst, const tensor_map &map, int x, int y, int z, u64 *b)
{
    const int at[4] = {x, y, z};
    emulated_now.load_box(dst, (const emulated_map *)&map, at, emulated_barrier(b), 1u << emulated_now.rank);
}
static inline void pixels_load(void *dst, const tensor_map &map, int c, int w, int h, int n, int w_off, int h_off,
                               u64 *b)
{
    const int at[5] = {c, w, h, n}, off[3] = {w_off, h_off};
    emulated_now.load_pixels(dst, (const emulated_map *)&map, at, off, emulated_barrier(b),
                             1u << emulated_now.rank);
}
static inline void pixels_load(void *dst, const tensor_map &map, int c, int w, int h, int d, int n, int w_off,
                               int h_off, int d_off, u64 *b)
{
    const int at[5] = {c, w, h, d, n}, off[3] = {w_off, h_off, d_off};
    emulated_now.load_pixels(dst, (const emulated_map *)&map, at, off, emulated_barrier(b),
                             1u << emulated_now.rank);
}
template <int COUNT, class T>
static inline void wgmma_across(float (&d)[COUNT], u64 a, u64 b, int accumulate, T type)
{
    emulated_product p = {
        .d = d, .a = a, .b = b, .columns = 2 * COUNT, .bf16 = emulated_is_bf16(type), .accumulate = accumulate};
    p.across = 1;
    emulated_together({a, b, accumulate, {}});
    emulated_now.multiply(&p);
}
