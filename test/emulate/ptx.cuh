// ptx.cuh - the functions of src/cuda/kernels/ptx.cuh by the emulator.
//
// Addresses in shared memory are offsets into the block's own, with its rank in the cluster above them, so that a
// descriptor made from one without a thought for the rank is noticed. Fences and registers are not emulated.
#pragma once

#include "numbers.h"

#include "half.cuh"

typedef unsigned int u32;
typedef unsigned long long u64;

static inline u32 smem_u32(const void *p)
{
    const size_t offset = (const char *)p - emulated_now.shared;
    if (offset >= EMULATED_SHARED) emulated_now.fail("an address outside of the block's dynamic shared memory");
    return (u32)offset | emulated_now.rank << EMULATED_RANK;
}
static inline emulated_mbarrier *emulated_barrier(u64 *b)
{
    return (emulated_mbarrier *)b;
}

// ---- mbarriers
static inline void mbar_init(u64 *b, int count)
{
    *emulated_barrier(b) = {(unsigned short)count, (unsigned short)count, 0, EMULATED_MADE, 0};
}
static inline void mbar_init_fence()
{
}
static inline void mbar_arrive(u64 *b, u32 count = 1)
{
    emulated_now.arrive(emulated_barrier(b), count, 0);
}
static inline void mbar_arrive_expect(u64 *b, u32 bytes)
{
    emulated_now.arrive(emulated_barrier(b), 1, bytes);
}
static inline void mbar_wait(u64 *b, u32 parity)
{
    emulated_now.wait_phase(emulated_barrier(b), parity);
}
static inline void named_barrier(int id, int threads)
{
    emulated_now.barrier(id, threads);
}
static inline void fence_proxy_async()
{
}

// ---- memory
static inline void bulk_load(void *dst, const void *src, u32 size, u64 *b)
{
    emulated_now.load(dst, src, size, emulated_barrier(b), 1u << emulated_now.rank);
}
static inline void tensor_load(void *dst, const void *map, int x, int y, int z, int n, u64 *b)
{
    const int at[4] = {x, y, z, n};
    emulated_now.load_box(dst, (const emulated_map *)map, at, emulated_barrier(b), 1u << emulated_now.rank);
}
static inline void store_blocks(void *column, const u32 (&words)[4])
{
    struct {
        unsigned char *to;
        u32 words[4];
    } mine = {(unsigned char *)column, {words[0], words[1], words[2], words[3]}}, theirs;
    const int lane = emulated_lane(), matrix = lane / 8, column_of = lane % 8;
    unsigned char *to = mine.to;

    if ((unsigned long long)column % 16) emulated_now.fail("a row of stmatrix that is not aligned");
    const emulated_deposit *all = emulated_now.meet(0xffffffffu, &mine, sizeof mine);
    for (int row = 0; row < 8; row++) { // every lane writes the column that it points to
        memcpy(&theirs, all[4 * row + column_of / 2], sizeof theirs);
        const u32 word = theirs.words[matrix] >> (column_of % 2 * 16);
        to[2 * row] = (unsigned char)word, to[2 * row + 1] = (unsigned char)(word >> 8);
    }
}
static inline u64 policy_evict_first()
{
    return 0;
}
static inline void bulk_store(void *dst, const void *src, u32 size, u64)
{
    if (!size || size % 16) emulated_now.fail("a bulk copy that is not of whole 16 bytes");
    emulated_now.copy(dst, src, size, size);
}
static inline void bulk_commit()
{
    emulated_now.commit();
}
template <int PENDING> static inline void bulk_wait_read()
{
    emulated_now.wait(PENDING);
}
static inline void bulk_wait()
{
    emulated_now.wait(0);
}
static inline void bulk_prefetch(const void *src, u32 size)
{
    const volatile char *at = (const volatile char *)src;
    if ((size_t)src % 16 || size % 16) emulated_now.fail("a prefetch that is not of whole 16 bytes");
    for (u32 i = 0; i < size; i += 16) at[i]; // it must be there
}
template <int COUNT> static inline void load_words(const u64 *p, u64 (&v)[COUNT])
{
    if ((size_t)p % (8 * COUNT)) emulated_now.fail("words that are not aligned");
    for (int i = 0; i < COUNT; i++) v[i] = p[i];
}
static inline void store_relaxed(u64 *p, u64 v)
{
    *p = v;
}

// ---- arithmetic
static inline float max_nan(float a, float b)
{
    return a != a ? a : b != b ? b : fmaxf(a, b);
}
static inline float min_nan(float a, float b)
{
    return a != a ? a : b != b ? b : fminf(a, b);
}
static inline float reciprocal(float x)
{
    return 1.0f / x;
}
static inline float tanh_approx(float x)
{
    return tanhf(x);
}
static inline float exp2_approx(float x)
{
    return exp2f(x);
}
static inline float log2_approx(float x)
{
    return log2f(x);
}
static inline u32 pack_f16(float lo, float hi)
{
    return emulated_to_half(lo) | emulated_to_half(hi) << 16;
}
static inline void unpack_f16(u32 v, float &lo, float &hi)
{
    lo = emulated_from_half(v & 0xffff), hi = emulated_from_half(v >> 16);
}

template <class T> static inline u32 add_zero_times(u32 v, u32 sum, T)
{
    float halves[2];
    for (int i = 0; i < 2; i++) {
        const T x = {(unsigned short)(v >> 16 * i)}, y = {(unsigned short)(sum >> 16 * i)};
        halves[i] = cvy_widen(y) + 0.0f * cvy_widen(x);
    }
    return cvy_narrow(halves[0], halves[1], T());
}

// ---- registers
template <class T> static inline void one_address(const T *&)
{
}
template <int COUNT> static inline void registers_take()
{
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "setmaxnreg");
}
template <int COUNT> static inline void registers_give()
{
    static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "setmaxnreg");
}

// ---- wgmma
static inline void wgmma_fence()
{
}
static inline void wgmma_commit()
{
    emulated_now.commit_products();
}
template <int PENDING> static inline void wgmma_wait()
{
    emulated_now.wait_products(PENDING);
}
template <int COUNT> static inline void acc_fence(float (&)[COUNT])
{
}
// What a lane brings: descriptors, the same ones in all lanes of the warp, and its words of an operand in
// registers.
struct emulated_operands {
    u64 a, b;
    int accumulate;
    float words[4];
};
static inline const emulated_deposit *emulated_together(const emulated_operands &mine)
{
    const emulated_deposit *all = emulated_now.meet(0xffffffffu, &mine, sizeof mine);
    for (int lane = 0; lane < EMULATED_LANES; lane++) {
        const emulated_operands &theirs = *(const emulated_operands *)all[lane];
        if (theirs.a != mine.a || theirs.b != mine.b || theirs.accumulate != mine.accumulate)
            emulated_now.fail("lanes of a warp multiply different operands");
    }
    return all;
}
static inline bool emulated_is_bf16(cvy_bf16)
{
    return true;
}
static inline bool emulated_is_bf16(cvy_f16)
{
    return false;
}
template <int COUNT, class T> static inline void wgmma_half(float (&d)[COUNT], u64 a, u64 b, int accumulate, T type)
{
    const emulated_product p = {
        .d = d, .a = a, .b = b, .columns = 2 * COUNT, .bf16 = emulated_is_bf16(type), .accumulate = accumulate};
    emulated_together({a, b, accumulate, {}});
    emulated_now.multiply(&p);
}
