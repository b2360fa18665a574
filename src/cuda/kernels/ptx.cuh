// ptx.cuh - one PTX instruction per function: mbarriers, bulk copies, wgmma, conversions. Hopper (sm_90a).
//
// Nothing is decided here. Callers keep the rules:
// - stores by ordinary instructions that wgmma or a bulk copy reads need fence_proxy_async() by the storing thread;
// - accumulators are fenced by acc_fence() from before the first wgmma of a batch until after its wait.
#pragma once

#include "half.cuh"

typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 smem_u32(const void *p)
{
    return (u32)__cvta_generic_to_shared(p);
}

// ---- mbarriers
__device__ __forceinline__ void mbar_init(u64 *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbar_arrive(u64 *b, u32 count = 1)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive_expect(u64 *b, u32 bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(b)), "r"(bytes)
                 : "memory");
}
// Returns when the phase of that parity is complete. parity 1 on a fresh barrier returns at once.
__device__ __forceinline__ void mbar_wait(u64 *b, u32 parity)
{
    asm volatile(
        "{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra W;\nD:\n}\n" ::
            "r"(smem_u32(b)),
        "r"(parity)
        : "memory");
}
__device__ __forceinline__ void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- memory
// size bytes, a multiple of 16, from global to shared memory; completes on the barrier.
__device__ __forceinline__ void bulk_load(void *dst, const void *src, u32 size, u64 *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     smem_u32(dst)),
                 "l"(src), "r"(size), "r"(smem_u32(b))
                 : "memory");
}
// The box of a 4-dimensional tensor map at coordinates (x, y, z, n); completes on the barrier.
__device__ __forceinline__ void tensor_load(void *dst, const void *map, int x, int y, int z, int n, u64 *b)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4, %5}], [%6];" ::"r"(smem_u32(dst)),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(n), "r"(smem_u32(b))
                 : "memory");
}
__device__ __forceinline__ u64 policy_evict_first() // of L2, for what is not read again
{
    u64 p;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
// Four matrices of 8 x 8 numbers of 16 bits, turned: lane 4r + q has numbers 2q and 2q + 1 of row r of each, and
// lane 8m + i the address of 16 bytes for column i of matrix m.
__device__ __forceinline__ void store_blocks(void *column, const u32 (&words)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_u32(column)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}
// size bytes, a multiple of 16, from shared to global memory; completes with the thread's bulk group.
__device__ __forceinline__ void bulk_store(void *dst, const void *src, u32 size, u64 policy)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(dst),
                 "r"(smem_u32(src)), "r"(size), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void bulk_wait_read() // all groups but the last PENDING have read their sources
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ void bulk_wait() // all groups are complete
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
__device__ __forceinline__ void bulk_prefetch(const void *src, u32 size) // into L2
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(size) : "memory");
}
// One word of 8 bytes, or two neighbours on 16; each word is read whole.
__device__ __forceinline__ void load_words(const u64 *p, u64 (&v)[1])
{
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v[0]) : "l"(p) : "memory");
}
__device__ __forceinline__ void load_words(const u64 *p, u64 (&v)[2])
{
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(p) : "memory");
}
__device__ __forceinline__ void store_relaxed(u64 *p, u64 v)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// ---- arithmetic
__device__ __forceinline__ float max_nan(float a, float b) // NaN wins, as in torch's max_pool
{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
__device__ __forceinline__ float min_nan(float a, float b)
{
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
__device__ __forceinline__ float reciprocal(float x) // to the last bit but one
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float tanh_approx(float x) // a relative error of 2^-11 at most
{
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float exp2_approx(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ float log2_approx(float x)
{
    float r;
    asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
__device__ __forceinline__ u32 pack_f16(float lo, float hi) // two fp16, round to nearest even
{
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
__device__ __forceinline__ void unpack_f16(u32 v, float &lo, float &hi)
{
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}\n"
        : "=f"(lo), "=f"(hi)
        : "r"(v));
}

// sum + 0 * v of both halves of a word.
__device__ __forceinline__ u32 add_zero_times(u32 v, u32 sum, cvy_f16)
{
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(v), "r"(0));
    return sum;
}
__device__ __forceinline__ u32 add_zero_times(u32 v, u32 sum, cvy_bf16)
{
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(v), "r"(0));
    return sum;
}

// ---- registers
// The compiler takes the address for a new one: what is added to it becomes an immediate offset.
template <class T> __device__ __forceinline__ void one_address(const T *&p)
{
    asm("" : "+l"(p));
}
template <int COUNT> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- wgmma
__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> __device__ __forceinline__ void wgmma_wait() // all batches but the last PENDING are done
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int COUNT> __device__ __forceinline__ void acc_fence(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#define ACC4(d, i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(d, i) ACC4(d, i), ACC4(d, i + 4), ACC4(d, i + 8), ACC4(d, i + 12)
#define REGS32                                                                                                     \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%"  \
    "29,%30,%31"
#define REGS64                                                                                                     \
    REGS32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56," \
           "%57,%58,%59,%60,%61,%62,%63"
// d (64 x 64, or 64 x 128) = a * b (+ d): operands of the last argument's type from shared memory, fp32
// accumulators, k = 16.
#define WGMMA_HALF(T, TYPE, N, COUNT, REGS, A, B, P, ...)                                                          \
    __device__ __forceinline__ void wgmma_half(float(&d)[COUNT], u64 a, u64 b, int accumulate, T)                  \
    {                                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                              \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, %" #A ", %" #B  \
                     ", p, 1, 1, 0, 0;\n}\n"                                                                       \
                     : __VA_ARGS__                                                                                 \
                     : "l"(a), "l"(b), "r"(accumulate));                                                           \
    }
WGMMA_HALF(cvy_f16, "f16", 64, 32, REGS32, 32, 33, 34, ACC16(d, 0), ACC16(d, 16))
WGMMA_HALF(cvy_f16, "f16", 128, 64, REGS64, 64, 65, 66, ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48))
WGMMA_HALF(cvy_bf16, "bf16", 64, 32, REGS32, 32, 33, 34, ACC16(d, 0), ACC16(d, 16))
WGMMA_HALF(cvy_bf16, "bf16", 128, 64, REGS64, 64, 65, 66, ACC16(d, 0), ACC16(d, 16), ACC16(d, 32), ACC16(d, 48))
