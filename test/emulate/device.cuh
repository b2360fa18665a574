// device.cuh - CUDA C++ for a host compiler: as much of it as the kernels of src/cuda/kernels use.
//
// Is placed before every kernel that nvrtc.c compiles. Threads are fibers of one system thread (run.c), so
// atomics are plain arithmetic, and everything that waits (barriers, shuffles, votes) is a call of the emulator.
// Inline PTX is not understood: a header that holds it is replaced by the one of its name in this folder.
//
// Arithmetic is the host's. It rounds as the device's does, except that a * b + c is two roundings here where NVRTC
// makes one, and that functions of libm are not those of CUDA's: results agree within bounds, not in bits.
#include "emulate.h"

extern "C" __attribute__((visibility("default"))) emulated emulated_now;
emulated emulated_now;

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
// Static shared memory lies in one section, so that it can be filled with NaNs before a block starts. nvrtc.c turns
// `extern __shared__ T name[];` into a pointer.
#define __shared__    static __attribute__((section("shared_memory")))
#define __CUDA_ARCH__ 800
#define threadIdx     (emulated_now.thread)
#define blockIdx      (emulated_now.block)
#define gridDim       (emulated_now.grid)
#define blockDim      (emulated_now.threads)
#define INFINITY      __builtin_inff()

typedef emulated_place uint3;
typedef emulated_place dim3;

// ---- vectors ----

#define EMULATED_VECTORS(T, name, size)                                                                            \
    struct __align__(2 * size) name##2                                                                             \
    {                                                                                                              \
        T x, y;                                                                                                    \
    };                                                                                                             \
    struct __align__(4 * size < 16 ? 4 * size : 16) name##4                                                        \
    {                                                                                                              \
        T x, y, z, w;                                                                                              \
    };                                                                                                             \
    static inline name##2 make_##name##2(T x, T y)                                                                 \
    {                                                                                                              \
        return {x, y};                                                                                             \
    }                                                                                                              \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                                       \
    {                                                                                                              \
        return {x, y, z, w};                                                                                       \
    }
EMULATED_VECTORS(float, float, 4)
EMULATED_VECTORS(int, int, 4)
EMULATED_VECTORS(unsigned, uint, 4)
EMULATED_VECTORS(double, double, 8)

// ---- arithmetic ----

extern "C" {
float expf(float), exp2f(float), expm1f(float), logf(float), log2f(float), log1pf(float), tanhf(float), erff(float),
    erfcf(float), powf(float, float), sqrtf(float), fmaf(float, float, float), fabsf(float), fminf(float, float),
    fmaxf(float, float), floorf(float), rintf(float);
double exp(double), log(double), sqrt(double), fabs(double), fma(double, double, double);
void *memcpy(void *, const void *, size_t);
}

static inline float rsqrtf(float x)
{
    return (float)(1.0 / sqrt((double)x));
}
static inline double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}
#define EMULATED_EXTREMES(T)                                                                                       \
    static inline T min(T a, T b)                                                                                  \
    {                                                                                                              \
        return a < b ? a : b;                                                                                      \
    }                                                                                                              \
    static inline T max(T a, T b)                                                                                  \
    {                                                                                                              \
        return a > b ? a : b;                                                                                      \
    }
EMULATED_EXTREMES(int)
EMULATED_EXTREMES(unsigned)
EMULATED_EXTREMES(size_t)

template <class To, class From> static inline To emulated_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __int_as_float(int x)
{
    return emulated_bits<float>(x);
}
static inline int __float_as_int(float x)
{
    return emulated_bits<int>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return emulated_bits<float>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return emulated_bits<unsigned>(x);
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline float __expf(float x)
{
    return expf(x);
}
static inline float __logf(float x)
{
    return logf(x);
}
// Byte i of the result is byte (order >> 4 * i) % 8 of x and y, one after the other.
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned order)
{
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (order >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
template <class T> static inline T __ldg(const T *p)
{
    return *p;
}
template <class T> static inline void __stcs(T *p, T x)
{
    *p = x;
}

// ---- threads that wait for each other ----

static inline void __syncthreads()
{
    emulated_now.barrier(0, 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulated_now.meet(mask, "", 0);
}
static inline void __nanosleep(unsigned)
{
    emulated_now.nap();
}
static inline void __threadfence()
{
}
static inline void __threadfence_block()
{
}

static inline int emulated_lane()
{
    return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % EMULATED_LANES);
}

// What lane `from` brought; a lane that is not there, or outside the width, reads its own.
template <class T> static inline T emulated_shuffle(unsigned mask, T mine, int from, int width)
{
    static_assert(sizeof(T) <= EMULATED_DEPOSIT, "a register or two");
    const int lane = emulated_lane();
    const emulated_deposit *all = emulated_now.meet(mask, &mine, sizeof mine);
    T got = mine;
    if (from / width == lane / width && from >= 0 && mask >> from & 1) memcpy(&got, all[from], sizeof got);
    return got;
}
template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32)
{
    return emulated_shuffle(mask, x, emulated_lane() / width * width + from % width, width);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    return emulated_shuffle(mask, x, emulated_lane() + (int)by, width);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32)
{
    return emulated_shuffle(mask, x, emulated_lane() - (int)by, width);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32)
{
    return emulated_shuffle(mask, x, emulated_lane() ^ with, width);
}
static inline unsigned __ballot_sync(unsigned mask, int yes)
{
    const emulated_deposit *all = emulated_now.meet(mask, &yes, sizeof yes);
    unsigned set = 0;
    for (int lane = 0; lane < EMULATED_LANES; lane++) {
        int theirs = 0;
        if (mask >> lane & 1) memcpy(&theirs, all[lane], sizeof theirs);
        set |= (unsigned)(theirs != 0) << lane;
    }
    return set;
}
template <typename T> static inline T emulated_extreme(unsigned mask, T x, bool largest)
{
    const emulated_deposit *all = emulated_now.meet(mask, &x, sizeof x);
    for (int lane = 0; lane < EMULATED_LANES; lane++) {
        T theirs = x;
        if (mask >> lane & 1) memcpy(&theirs, all[lane], sizeof theirs);
        x = (theirs > x) == largest ? theirs : x;
    }
    return x;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned x)
{
    return emulated_extreme(mask, x, true);
}
static inline int __reduce_max_sync(unsigned mask, int x)
{
    return emulated_extreme(mask, x, true);
}
static inline int __reduce_min_sync(unsigned mask, int x)
{
    return emulated_extreme(mask, x, false);
}
static inline int __any_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) != 0;
}
static inline int __all_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) == mask;
}

// ---- atomics: fibers change over only where they wait, so an ordinary sum is one ----

template <class T> static inline T atomicAdd(T *p, T x)
{
    const T old = *p;
    *p = old + x;
    return old;
}
template <class T> static inline T atomicExch(T *p, T x)
{
    const T old = *p;
    *p = x;
    return old;
}
template <class T> static inline T atomicMax(T *p, T x)
{
    const T old = *p;
    if (x > old) *p = x;
    return old;
}
template <class T> static inline T atomicCAS(T *p, T expected, T x)
{
    const T old = *p;
    if (old == expected) *p = x;
    return old;
}

// ---- the way in: arguments by address, as the driver's launch has them ----

template <int... I> struct emulated_numbers {
};
template <int N, int... I> struct emulated_count : emulated_count<N - 1, N - 1, I...> {
};
template <int... I> struct emulated_count<0, I...> {
    typedef emulated_numbers<I...> type;
};

extern "C" char __start_shared_memory[] __attribute__((weak)), __stop_shared_memory[] __attribute__((weak));
extern "C" __attribute__((visibility("default"))) char *emulated_shared_begin()
{
    return __start_shared_memory;
}
extern "C" __attribute__((visibility("default"))) char *emulated_shared_end()
{
    return __stop_shared_memory;
}

template <class... As, int... I>
static inline void emulated_call(void (*kernel)(As...), void **arguments, emulated_numbers<I...>)
{
    kernel(*(As *)arguments[I]...);
}
template <class... As> static inline void emulated_call(void (*kernel)(As...), void **arguments)
{
    emulated_call(kernel, arguments, typename emulated_count<sizeof...(As)>::type());
}
