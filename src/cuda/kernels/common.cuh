// common.cuh - the arguments of every kernel, and positions in tensors.
//
// All tensors of a launch are in one list of views, each a pointer and the strides of up to six dimensions, in
// elements. Sizes that belong to the shape of one sample are macros; the extent of dimension 0 (the batch) is an
// argument, so a new batch size compiles nothing.
#ifndef CVY_COMMON_CUH
#define CVY_COMMON_CUH

#include "follow.cuh"
#include "half.cuh"
#include "host_device.cuh"

#ifndef TENSORS
#define TENSORS 3 // views in the argument
#endif
#ifndef FAR
#define FAR 0 // 1: some offset of some tensor needs more than 31 bits
#endif
#ifndef KERNEL_NAME
#define KERNEL_NAME convoy_kernel
#endif
static_assert(TENSORS >= 1 && TENSORS <= 64, "the views fit into 4 KB of arguments");

#if FAR
typedef long long cvy_index;
#else
typedef int cvy_index;
#endif

#define CVY_INLINE        static __device__ __forceinline__
#define CVY_INLINE_MEMBER __device__ __forceinline__
#define CVY_INF           __int_as_float(0x7f800000)
#define CVY_NAN           __int_as_float(0x7fc00000)

struct cvy_view {
    float *p;
    long long s[6]; // strides
};

struct cvy_args {
    long long extent; // of dimension 0 of the space the kernel runs over
    cvy_view t[TENSORS];
};

// Where an element is: its coordinates, and its number in row-major order.
struct cvy_at {
    int i0, i1, i2, i3, i4, i5;
    cvy_index lin;
};

// The coordinates of element number `lin` of a space whose inner extents are E1...E5; unused ones cost
// nothing.
template <int E1, int E2, int E3, int E4, int E5, class I> CVY_INLINE cvy_at cvy_unravel(I lin)
{
    cvy_at at;
    at.lin = lin;
    at.i5 = (int)(lin % E5), lin /= E5;
    at.i4 = (int)(lin % E4), lin /= E4;
    at.i3 = (int)(lin % E3), lin /= E3;
    at.i2 = (int)(lin % E2), lin /= E2;
    at.i1 = (int)(lin % E1), lin /= E1;
    at.i0 = (int)lin;
    return at;
}

// N neighbours, from element number `lin` on, which is a multiple of N: where they cannot leave their innermost
// dimension, only its coordinate changes.
template <int N, int E1, int E2, int E3, int E4, int E5>
CVY_INLINE void cvy_neighbours(cvy_index lin, cvy_at (&at)[N])
{
    constexpr int INNERMOST = E5 > 1 ? 5 : E4 > 1 ? 4 : E3 > 1 ? 3 : E2 > 1 ? 2 : E1 > 1 ? 1 : 0;
    constexpr int EXTENT = E5 > 1 ? E5 : E4 > 1 ? E4 : E3 > 1 ? E3 : E2 > 1 ? E2 : E1;
    const cvy_at first = cvy_unravel<E1, E2, E3, E4, E5>(lin);
#pragma unroll
    for (int j = 0; j < N; j++) {
        at[j] = INNERMOST == 0 || EXTENT % N == 0 ? first : cvy_unravel<E1, E2, E3, E4, E5>(lin + j);
        if (INNERMOST && EXTENT % N) continue;
        int *i[6] = {&at[j].i0, &at[j].i1, &at[j].i2, &at[j].i3, &at[j].i4, &at[j].i5};
        *i[INNERMOST] += j;
        at[j].lin = lin + j;
    }
}

// ---- elements: float, cvy_f16 or cvy_bf16 in memory, float32 everywhere else ----

// The elements of a tensor, of type T. p itself is right only for float32.
template <class T> CVY_INLINE T *cvy_as(const cvy_view &v)
{
    return reinterpret_cast<T *>(v.p);
}

CVY_INLINE float cvy_widen(float x)
{
    return x;
}
// Rounds once, to the nearest.
CVY_INLINE void cvy_put(float &p, float x)
{
    p = x;
}
template <class T> CVY_INLINE void cvy_put(T &p, float x)
{
    p.bits = (unsigned short)cvy_narrow(x, 0.0f, T());
}
// Reads memory that is not written during the kernel.
CVY_INLINE float cvy_get(const float *p)
{
    return __ldg(p);
}
template <class T> CVY_INLINE float cvy_get(const T *p)
{
    T x;
    x.bits = __ldg(&p->bits);
    return cvy_widen(x);
}

template <class T> CVY_INLINE T cvy_half_of(unsigned pair, bool upper)
{
    T x;
    x.bits = (unsigned short)(upper ? pair >> 16 : pair);
    return x;
}
template <class T, int N> CVY_INLINE void cvy_widen_pairs(const unsigned (&pairs)[N / 2], float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = cvy_widen(cvy_half_of<T>(pairs[i / 2], i % 2));
}
// The same of 1, 2, 4 or 8 neighbours, at a multiple of that.
CVY_INLINE void cvy_get(const float *p, float (&x)[1])
{
    x[0] = __ldg(p);
}
CVY_INLINE void cvy_get(const float *p, float (&x)[2])
{
    const float2 v = __ldg(reinterpret_cast<const float2 *>(p));
    x[0] = v.x, x[1] = v.y;
}
CVY_INLINE void cvy_get(const float *p, float (&x)[4])
{
    const float4 v = __ldg(reinterpret_cast<const float4 *>(p));
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
CVY_INLINE void cvy_get(const float *p, float (&x)[8])
{
    const float4 v = __ldg(reinterpret_cast<const float4 *>(p)), w = __ldg(reinterpret_cast<const float4 *>(p) + 1);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    x[4] = w.x, x[5] = w.y, x[6] = w.z, x[7] = w.w;
}
template <class T> CVY_INLINE void cvy_get(const T *p, float (&x)[1])
{
    x[0] = cvy_get(p);
}
template <class T> CVY_INLINE void cvy_get(const T *p, float (&x)[2])
{
    const unsigned pairs[1] = {__ldg(reinterpret_cast<const unsigned *>(p))};
    cvy_widen_pairs<T>(pairs, x);
}
template <class T> CVY_INLINE void cvy_get(const T *p, float (&x)[4])
{
    const uint2 v = __ldg(reinterpret_cast<const uint2 *>(p));
    const unsigned pairs[2] = {v.x, v.y};
    cvy_widen_pairs<T>(pairs, x);
}
template <class T> CVY_INLINE void cvy_get(const T *p, float (&x)[8])
{
    const uint4 v = __ldg(reinterpret_cast<const uint4 *>(p));
    const unsigned pairs[4] = {v.x, v.y, v.z, v.w};
    cvy_widen_pairs<T>(pairs, x);
}

// One access to 1, 2, 4 or 8 neighbours; two to 8 of float32.
CVY_INLINE void cvy_load(const float *p, float (&x)[1])
{
    x[0] = *p;
}
CVY_INLINE void cvy_load(const float *p, float (&x)[2])
{
    const float2 v = *reinterpret_cast<const float2 *>(p);
    x[0] = v.x, x[1] = v.y;
}
CVY_INLINE void cvy_load(const float *p, float (&x)[4])
{
    const float4 v = *reinterpret_cast<const float4 *>(p);
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
CVY_INLINE void cvy_store(float *p, const float (&x)[1])
{
    *p = x[0];
}
CVY_INLINE void cvy_store(float *p, const float (&x)[4])
{
    *reinterpret_cast<float4 *>(p) = make_float4(x[0], x[1], x[2], x[3]);
}
CVY_INLINE void cvy_load(const float *p, float (&x)[8])
{
    const float4 v = reinterpret_cast<const float4 *>(p)[0], w = reinterpret_cast<const float4 *>(p)[1];
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    x[4] = w.x, x[5] = w.y, x[6] = w.z, x[7] = w.w;
}
CVY_INLINE void cvy_store(float *p, const float (&x)[8])
{
    reinterpret_cast<float4 *>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4 *>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
template <class T> CVY_INLINE void cvy_load(const T *p, float (&x)[1])
{
    x[0] = cvy_widen(*p);
}
template <class T> CVY_INLINE void cvy_load(const T *p, float (&x)[2])
{
    const unsigned pairs[1] = {*reinterpret_cast<const unsigned *>(p)};
    cvy_widen_pairs<T>(pairs, x);
}
template <class T> CVY_INLINE void cvy_load(const T *p, float (&x)[4])
{
    const uint2 v = *reinterpret_cast<const uint2 *>(p);
    const unsigned pairs[2] = {v.x, v.y};
    cvy_widen_pairs<T>(pairs, x);
}
template <class T> CVY_INLINE void cvy_load(const T *p, float (&x)[8])
{
    const uint4 v = *reinterpret_cast<const uint4 *>(p);
    const unsigned pairs[4] = {v.x, v.y, v.z, v.w};
    cvy_widen_pairs<T>(pairs, x);
}
template <class T> CVY_INLINE void cvy_store(T *p, const float (&x)[1])
{
    cvy_put(*p, x[0]);
}
template <class T> CVY_INLINE void cvy_store(T *p, const float (&x)[4])
{
    *reinterpret_cast<uint2 *>(p) = make_uint2(cvy_narrow(x[0], x[1], T()), cvy_narrow(x[2], x[3], T()));
}
template <class T> CVY_INLINE void cvy_store(T *p, const float (&x)[8])
{
    *reinterpret_cast<uint4 *>(p) = make_uint4(cvy_narrow(x[0], x[1], T()), cvy_narrow(x[2], x[3], T()),
                                               cvy_narrow(x[4], x[5], T()), cvy_narrow(x[6], x[7], T()));
}

CVY_INLINE cvy_index cvy_stride(const cvy_view &v, int d)
{
    return (cvy_index)v.s[d];
}

#endif
