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

CVY_INLINE cvy_index cvy_stride(const cvy_view &v, int d)
{
    return (cvy_index)v.s[d];
}

#endif
