// host_device.cuh - for headers that the host includes as C11 and the kernels as CUDA C++: plain structs, enums and
// CVY_CONST functions, which are constants in a kernel if their arguments are.
#ifndef CVY_HOST_DEVICE_CUH
#define CVY_HOST_DEVICE_CUH

#ifdef __cplusplus
#define CVY_CONST __host__ __device__ constexpr
#else
#include <stdbool.h>
#define CVY_CONST static inline
#endif

// Bytes of a number: in float32, which arithmetic is done in, in 16 bits, and of long sums in double.
enum { FLOAT_BYTES = 4, HALF_BYTES = 2, DOUBLE_BYTES = 8 };

// The widest load or store, and the floats that it moves.
enum { ACCESS_BYTES = 16, ACCESS_FLOATS = ACCESS_BYTES / FLOAT_BYTES };

// Threads of a block: of a kernel whose choice of a tile does not say otherwise; that packs the weights of an
// output channel for tensor cores.
enum { BLOCK_THREADS = 256, PACK_THREADS = 128 };
// Partial results in memory: count, mean and sum of squares of moments.cuh; the largest gatherer of gather.cuh.
enum { MOMENTS_BYTES = 3 * DOUBLE_BYTES, GATHERER_BYTES = DOUBLE_BYTES };
// Channels and pixels of a tile of turn.cu.
enum { TURN_SIDE = 64 };

CVY_CONST int cdiv(int a, int b)
{
    return (a + b - 1) / b;
}
CVY_CONST int least(int a, int b)
{
    return a < b ? a : b;
}
CVY_CONST int most(int a, int b)
{
    return a > b ? a : b;
}

// How many neighbours one access moves of rows of n floats: every row must begin where an access may.
CVY_CONST int access_width(long long n)
{
    return n % ACCESS_FLOATS ? 1 : ACCESS_FLOATS;
}

#endif
