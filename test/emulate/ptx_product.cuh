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
// A row's k are four lanes': words 0 and 2 of row g are k t and t + 4, words 1 and 3 those of row g + 8.
template <int COUNT> static inline void wgmma_tf32(float (&d)[COUNT], const float (&a)[4], u64 b, int accumulate)
{
    emulated_product p = {.d = d, .b = b, .columns = 2 * COUNT, .tf32 = 1, .accumulate = accumulate};
    const emulated_deposit *all = emulated_together({0, b, accumulate, {a[0], a[1], a[2], a[3]}});
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < 4; i++)
            p.a_rows[i % 2][t + i / 2 * 4] =
                ((const emulated_operands *)all[emulated_lane() / 4 * 4 + t])->words[i];
    emulated_now.multiply(&p);
}
