// epilogue.cuh - the identity, in the place of the text that Convoy generates for each kernel (emit.c).
//
// cvy_prologue: the value that a kernel reads at a place; here an element of t[1].
// cvy_epilogue: takes the kernel's result at a place, and stores it; here into t[0].
// cvy_read, cvy_write: the same for N neighbours, in kernels that process several at a time (emit.h).
#ifndef CVY_EPILOGUE_CUH
#define CVY_EPILOGUE_CUH

#include "common.cuh"
#include "ops.cuh"

CVY_INLINE float cvy_prologue(const cvy_args &a, const cvy_at at)
{
    return a.t[1].p[at.lin];
}

CVY_INLINE void cvy_epilogue(const cvy_args &a, const cvy_at at, const float t0)
{
    a.t[0].p[at.lin] = t0;
}

template <int N> CVY_INLINE void cvy_read(const cvy_args &a, const cvy_at (&all)[N], float (&x)[N])
{
    cvy_load(&a.t[1].p[all[0].lin], x);
}

template <int N> CVY_INLINE void cvy_write(const cvy_args &a, const cvy_at (&all)[N], const float (&x)[N])
{
    cvy_store(&a.t[0].p[all[0].lin], x);
}

#endif
