// copy.cuh - copies from device memory to shared memory that do not pass through registers: one PTX instruction per
// function (cp.async), and nothing else, so that test/emulate can put its own in their place.
#ifndef CVY_COPY_CUH
#define CVY_COPY_CUH

#include "common.cuh"

// Four bytes, or a zero where !valid (the address is not touched then).
CVY_INLINE void cvy_copy4(float *dst, const float *src, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(dst)),
                 "l"(src), "r"(valid ? 4 : 0)
                 : "memory");
}
CVY_INLINE void cvy_copy16(float *dst, const float *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(dst)),
                 "l"(src)
                 : "memory");
}
// Sixteen bytes, or zeros where !valid.
CVY_INLINE void cvy_copy16_if(float *dst, const float *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(dst)),
                 "l"(src), "r"(valid ? 16 : 0)
                 : "memory");
}
// Closes the group of copies begun since the last call.
CVY_INLINE void cvy_copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most PENDING of this thread's groups are in flight.
template <int PENDING> CVY_INLINE void cvy_copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
