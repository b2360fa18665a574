// common.cuh - what every kernel of Convoy receives, and where in a tensor it stands.
//
// All tensors of a launch lie in one list: views, each a pointer and the strides of up to six dimensions, in
// elements. Sizes that belong to the shape of one sample are macros; the extent of dimension 0 (the batch) is an
// argument, so that a new batch size compiles nothing.
#ifndef CVY_COMMON_CUH
#define CVY_COMMON_CUH

#ifndef TENSORS
#define TENSORS 3 // views in the argument
#endif
#ifndef WIDE
#define WIDE 0 // 1: some offset of some tensor needs more than 31 bits
#endif
#ifndef KERNEL_NAME
#define KERNEL_NAME convoy_kernel
#endif
static_assert(TENSORS >= 1 && TENSORS <= 64, "the views fit into 4 KB of arguments");

#if WIDE
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

// Where an element stands: its coordinates, and its number in row-major order.
struct cvy_at {
    int i0, i1, i2, i3, i4, i5;
    cvy_index lin;
};

// The coordinates of element number `lin` of a space whose inner extents are E1...E5; those that nobody reads cost
// nothing.
template <int E1, int E2, int E3, int E4, int E5> CVY_INLINE cvy_at cvy_unravel(cvy_index lin)
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

// One access of 4 or 16 bytes.
CVY_INLINE void cvy_load(const float *p, float (&x)[1])
{
    x[0] = *p;
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

CVY_INLINE cvy_index cvy_stride(const cvy_view &v, int d)
{
    return (cvy_index)v.s[d];
}

#endif
