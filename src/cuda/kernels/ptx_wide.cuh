// ptx_wide.cuh - one PTX instruction per function, what conv_wide.cu and matmul_wide.cu need beyond
// ptx_product.cuh: tensor copies of three dimensions, wgmma of other widths. Hopper (sm_90a).
#pragma once

#include "ptx_product.cuh"

// The box of a 3-dimensional tensor map at coordinates (x, y, z); completes on the barrier.
__device__ __forceinline__ void tensor_load(void *dst, const tensor_map &map, int x, int y, int z, u64 *b)
{
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(smem_u32(dst)),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(smem_u32(b))
        : "memory");
}

// Neighbouring pixels of a tensor map that walks through them, from the one at (w, h, [d,] n) on, `*_off` pixels
// further along each axis; channels from c on.
__device__ __forceinline__ void pixels_load(void *dst, const tensor_map &map, int c, int w, int h, int n, int w_off,
                                            int h_off, u64 *b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(smem_u32(dst)),
                 "l"(&map), "r"(c), "r"(w), "r"(h), "r"(n), "r"(smem_u32(b)), "h"((short)w_off), "h"((short)h_off)
                 : "memory");
}
__device__ __forceinline__ void pixels_load(void *dst, const tensor_map &map, int c, int w, int h, int d, int n,
                                            int w_off, int h_off, int d_off, u64 *b)
{
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, "
                 "{%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(smem_u32(dst)),
                 "l"(&map), "r"(c), "r"(w), "r"(h), "r"(d), "r"(n), "r"(smem_u32(b)), "h"((short)w_off),
                 "h"((short)h_off), "h"((short)d_off)
                 : "memory");
}

// d (64 x N) = a * b (+ d): operands of the last argument's type from shared memory, fp32 accumulators, k = 16.
// Columns as ptx.cuh has them. wgmma_half: both operands K-major; wgmma_across: b lies along its columns
// (descriptor.cuh).
#define REGS48 REGS32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define REGS72 REGS64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define REGS96                                                                                                     \
    REGS64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
           "%89,%90,%91,%92,%93,%94,%95"
#define REGS112 REGS96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define WGMMA_WORDS(NAME, ACROSS, T, TYPE, N, COUNT, REGS, A, B, P, ...)                                           \
    __device__ __forceinline__ void NAME(float(&d)[COUNT], u64 a, u64 b, int accumulate, T)                        \
    {                                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, %" #A ", %" #B  \
                     ", p, 1, 1, 0, " #ACROSS ";\n}\n"                                                             \
                     : __VA_ARGS__                                                                                 \
                     : "l"(a), "l"(b), "r"(accumulate));                                                           \
    }
#define WGMMA_ODD(T, TYPE)                                                                                         \
    WGMMA_WORDS(wgmma_half, 0, T, TYPE, 96, 48, REGS48, 48, 49, 50, ACC16(d, 0), ACC16(d, 16), ACC16(d, 32))       \
    WGMMA_WORDS(wgmma_half, 0, T, TYPE, 144, 72, REGS72, 72, 73, 74, ACC64(d, 0), ACC4(d, 64), ACC4(d, 68))        \
    WGMMA_WORDS(wgmma_half, 0, T, TYPE, 224, 112, REGS112, 112, 113, 114, ACC64(d, 0), ACC16(d, 64), ACC16(d, 80), \
                ACC16(d, 96))
WGMMA_ODD(cvy_f16, "f16")
WGMMA_ODD(cvy_bf16, "bf16")
#define WGMMA_WIDEST(NAME, ACROSS, T, TYPE)                                                                        \
    WGMMA_WORDS(NAME, ACROSS, T, TYPE, 192, 96, REGS96, 96, 97, 98, ACC64(d, 0), ACC16(d, 64), ACC16(d, 80))       \
    WGMMA_WORDS(NAME, ACROSS, T, TYPE, 256, 128, REGS128, 128, 129, 130, ACC64(d, 0), ACC64(d, 64))
WGMMA_WIDEST(wgmma_half, 0, cvy_f16, "f16")
WGMMA_WIDEST(wgmma_half, 0, cvy_bf16, "bf16")
#define WGMMA_ACROSS(T, TYPE)                                                                                      \
    WGMMA_WORDS(wgmma_across, 1, T, TYPE, 64, 32, REGS32, 32, 33, 34, ACC16(d, 0), ACC16(d, 16))                   \
    WGMMA_WORDS(wgmma_across, 1, T, TYPE, 128, 64, REGS64, 64, 65, 66, ACC64(d, 0))                                \
    WGMMA_WIDEST(wgmma_across, 1, T, TYPE)
WGMMA_ACROSS(cvy_f16, "f16")
WGMMA_ACROSS(cvy_bf16, "bf16")
