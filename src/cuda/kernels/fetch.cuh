// fetch.cuh - copies elements from device memory to shared memory, where they are float32. Elements that are
// float32 in memory pass through no register and arrive when the thread waits for its copies (copy.cuh); others are
// loaded, widened and stored. After a wait and a barrier, both have arrived.
#ifndef CVY_FETCH_CUH
#define CVY_FETCH_CUH

#include "copy.cuh"

// One element, or a zero where !valid (the address is not touched then).
CVY_INLINE void cvy_fetch(float *dst, const float *src, bool valid)
{
    cvy_copy4(dst, src, valid);
}
template <class T> CVY_INLINE void cvy_fetch(float *dst, const T *src, bool valid)
{
    *dst = valid ? cvy_get(src) : 0.0f;
}
// Four neighbours, at a multiple of as many.
CVY_INLINE void cvy_fetch4(float *dst, const float *src, bool valid)
{
    cvy_copy16_if(dst, src, valid);
}
template <class T> CVY_INLINE void cvy_fetch4(float *dst, const T *src, bool valid)
{
    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (valid) cvy_load(src, x);
    cvy_store(dst, x);
}

#endif
