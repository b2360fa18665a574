// ptx_product.cuh - one PTX instruction per function, those that matmul_tc.cu needs in addition to ptx.cuh:
// clusters, copies that several blocks receive, wgmma in tf32. Hopper (sm_90a).
#pragma once

#include "ptx.cuh"

struct alignas(64) tensor_map {
    u64 opaque[16];
};

// ---- clusters
// Together a barrier of all threads of all blocks of the cluster; what was written before is seen after it.
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives on the barrier that lies at the same place in block `rank` of the cluster.
__device__ __forceinline__ void mbar_arrive_at(u64 *b, u32 rank)
{
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}\n" ::"r"(smem_u32(b)),
                 "r"(rank)
                 : "memory");
}
// mbar_wait() for arrivals from other blocks.
__device__ __forceinline__ void mbar_wait_cluster(u64 *b, u32 parity)
{
    asm volatile(
        "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra "
        "D;\nbra W;\nD:\n}\n" ::"r"(smem_u32(b)),
        "r"(parity)
        : "memory");
}

// ---- copies
__device__ __forceinline__ void prefetch_map(const tensor_map &map) // so that the first copy need not wait for it
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// The box of a 2-dimensional tensor map at coordinates (x, y); completes on the barrier.
__device__ __forceinline__ void tensor_load(void *dst, const tensor_map &map, int x, int y, u64 *b)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(smem_u32(dst)),
        "l"(&map), "r"(x), "r"(y), "r"(smem_u32(b))
        : "memory");
}
// Into every block whose bit in `blocks` is set, at the same place, each with its own barrier.
__device__ __forceinline__ void tensor_load_many(void *dst, const tensor_map &map, int x, int y, u64 *b,
                                                 unsigned short blocks)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem_u32(dst)),
                 "l"(&map), "r"(x), "r"(y), "r"(smem_u32(b)), "h"(blocks)
                 : "memory");
}
__device__ __forceinline__ void bulk_load_many(void *dst, const void *src, u32 size, u64 *b, unsigned short blocks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], "
                 "%2, [%3], %4;" ::"r"(smem_u32(dst)),
                 "l"(src), "r"(size), "r"(smem_u32(b)), "h"(blocks)
                 : "memory");
}

// ---- wgmma
// d (64 x N) = a * b (+ d), k = 8 in tf32, 16 in fp16 or bf16: the last argument's type. a: what lane 4g + t of
// warp w has is row 16w + g, k t (of 16 bits: 2t and 2t + 1); row + 8; k + 4 (+ 8); both. b from shared memory, [N]
// rows of k without swizzle (wgmma_desc). d: pairs of columns 8j + 2t of row 16w + g, then of row + 8.
#define REGS16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REGS128                                                                                                    \
    REGS64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
           "%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"   \
           "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define ACC64(d, i) ACC16(d, i), ACC16(d, i + 16), ACC16(d, i + 32), ACC16(d, i + 48)
#define WGMMA_ROWS(T, KIND, LAST, N, COUNT, REGS, A0, A1, A2, A3, B, P, ...)                                       \
    __device__ __forceinline__ void wgmma_rows(float(&d)[COUNT], const float(&a)[4], u64 b, int accumulate, T)     \
    {                                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N KIND " {" REGS "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3  \
                     "}, %" #B ", p, 1, 1" LAST ";\n}\n"                                                           \
                     : __VA_ARGS__                                                                                 \
                     : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),         \
                       "r"(__float_as_uint(a[3])), "l"(b), "r"(accumulate));                                       \
    }
#define WGMMA_TYPE(T, KIND, LAST)                                                                                  \
    WGMMA_ROWS(T, KIND, LAST, 32, 16, REGS16, 16, 17, 18, 19, 20, 21, ACC16(d, 0))                                 \
    WGMMA_ROWS(T, KIND, LAST, 64, 32, REGS32, 32, 33, 34, 35, 36, 37, ACC16(d, 0), ACC16(d, 16))                   \
    WGMMA_ROWS(T, KIND, LAST, 128, 64, REGS64, 64, 65, 66, 67, 68, 69, ACC64(d, 0))                                \
    WGMMA_ROWS(T, KIND, LAST, 256, 128, REGS128, 128, 129, 130, 131, 132, 133, ACC64(d, 0), ACC64(d, 64))
WGMMA_TYPE(float, "k8.f32.tf32.tf32", "")
WGMMA_TYPE(cvy_f16, "k16.f32.f16.f16", ", 0")
WGMMA_TYPE(cvy_bf16, "k16.f32.bf16.bf16", ", 0")
