// copy.cuh - the functions of src/cuda/kernels/copy.cuh by the emulator: nothing arrives before it is waited for.
#ifndef CVY_COPY_CUH
#define CVY_COPY_CUH

#include "common.cuh"

CVY_INLINE void cvy_copy4(float *dst, const float *src, bool valid)
{
    emulated_now.copy(dst, src, 4, valid ? 4 : 0);
}
CVY_INLINE void cvy_copy16(float *dst, const float *src)
{
    emulated_now.copy(dst, src, 16, 16);
}
CVY_INLINE void cvy_copy16_if(float *dst, const float *src, bool valid)
{
    emulated_now.copy(dst, src, 16, valid ? 16 : 0);
}
CVY_INLINE void cvy_copies_commit()
{
    emulated_now.commit();
}
template <int PENDING> CVY_INLINE void cvy_copies_wait()
{
    emulated_now.wait(PENDING);
}

#endif
