// ptx_product.cuh - the functions of src/cuda/kernels/ptx_product.cuh by the emulator.
#pragma once

#include "ptx.cuh"

struct alignas(64) tensor_map {
    u64 opaque[16];
};

// ---- clusters
static inline void cluster_arrive()
{
}
static inline void cluster_wait()
{
    emulated_now.wait_cluster();
}
static inline void mbar_arrive_at(u64 *b, u32 rank)
{
    emulated_now.arrive((emulated_mbarrier *)emulated_now.peer(b, rank), 1, 0);
}
static inline void mbar_wait_cluster(u64 *b, u32 parity)
{
    mbar_wait(b, parity);
}

// ---- copies
static inline void prefetch_map(const tensor_map &)
{
}
static inline void tensor_load_many(void *dst, const tensor_map &map, int x, int y, u64 *b, unsigned short blocks)
{
    const int at[4] = {x, y};
    emulated_now.load_box(dst, (const emulated_map *)&map, at, emulated_barrier(b), blocks);
}
static inline void tensor_load(void *dst, const tensor_map &map, int x, int y, u64 *b)
{
    tensor_load_many(dst, map, x, y, b, (unsigned short)(1u << emulated_now.rank));
}
static inline void bulk_load_many(void *dst, const void *src, u32 size, u64 *b, unsigned short blocks)
{
    emulated_now.load(dst, src, size, emulated_barrier(b), blocks);
}

// ---- wgmma
// What word i of lane t of four is of row g, or for an odd i of row g + 8: words 2 and 3 are those of the upper k.
static inline void emulated_put(float (&row)[16], int t, int i, float word, float)
{
    row[t + i / 2 * 4] = emulated_tf32(word);
}
template <class T> static inline void emulated_put(float (&row)[16], int t, int i, float word, T)
{
    for (int e = 0; e < 2; e++) {
        const T x = {(unsigned short)(__float_as_uint(word) >> 16 * e)};
        row[2 * t + i / 2 * 8 + e] = cvy_widen(x);
    }
}
static inline bool emulated_is_bf16(float)
{
    return false;
}
template <int COUNT, class T>
static inline void wgmma_rows(float (&d)[COUNT], const float (&a)[4], u64 b, int accumulate, T type)
{
    emulated_product p = {.d = d, .b = b};
    const emulated_deposit *all = emulated_together({0, b, accumulate, {a[0], a[1], a[2], a[3]}});
    p.in_rows = 1, p.columns = 2 * COUNT, p.accumulate = accumulate;
    p.tf32 = sizeof(T) == 4, p.bf16 = emulated_is_bf16(type);
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 4; i++)
            emulated_put(p.a_rows[i % 2], t, i,
                         ((const emulated_operands *)all[emulated_lane() / 4 * 4 + t])->words[i], type);
    emulated_now.multiply(&p);
}
