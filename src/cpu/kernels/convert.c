/* convert.c - words of fp16 and bf16 to floats and back, contiguous runs. See convert.h.
 *
 * A run is taken VL words at a time; the last few go through a vector's worth of words on the stack. Bound: memory.
 */
#include "../convert.h"
#include "../simd.h"

/* Entries are named by the words' type: widen_f16_16_avx512. */
#define TYPE_fp16                 f16
#define TYPE_bf16                 bf16
#define WORDS_ENTRY(kernel, name) ISA(CVYI_PASTE(CVYI_PASTE(kernel##_, TYPE_##name), CVYI_PASTE(_, VL)))

/* Words that are fetched ahead: the next tile of a program arrives while this one is computed. */
enum { AHEAD = 1024 };

#define WIDEN(name)                                                                                                \
    static void WORDS_ENTRY(widen, name)(float *dst, const uint16_t *src, int64_t n)                               \
    {                                                                                                              \
        uint16_t last[VL] = {0};                                                                                   \
        int64_t i = 0;                                                                                             \
        for (; i + VL <= n; i += VL) {                                                                             \
            __builtin_prefetch(src + i + AHEAD);                                                                   \
            v_store(dst + i, v_load_##name(src + i));                                                              \
        }                                                                                                          \
        if (i == n) return;                                                                                        \
        memcpy(last, src + i, (size_t)(n - i) * sizeof *src);                                                      \
        v_store_n(dst + i, n - i, v_load_##name(last));                                                            \
    }

#define NARROW(name)                                                                                               \
    static void WORDS_ENTRY(narrow, name)(uint16_t * dst, const float *src, int64_t n)                             \
    {                                                                                                              \
        uint16_t last[VL];                                                                                         \
        int64_t i = 0;                                                                                             \
        for (; i + VL <= n; i += VL) v_store_##name(dst + i, v_load(src + i));                                     \
        if (i == n) return;                                                                                        \
        v_store_##name(last, v_load_n(src + i, n - i));                                                            \
        memcpy(dst + i, last, (size_t)(n - i) * sizeof *dst);                                                      \
    }

WIDEN(fp16)
WIDEN(bf16)
NARROW(fp16)
NARROW(bf16)

/* Words before the next line of the caches. */
static int64_t to_line(const uint16_t *dst, int64_t n)
{
    const int64_t front = (int64_t)(-((uintptr_t)dst / sizeof *dst) % CPU_LINE_WORDS);
    return front < n ? front : n;
}

/* Whole lines go past the caches. The parts of others at both ends are stored as usual: never in both ways. */
#define NARROW_STREAM(name)                                                                                        \
    static void WORDS_ENTRY(narrow_stream, name)(uint16_t * dst, const float *src, int64_t n)                      \
    {                                                                                                              \
        int64_t i = to_line(dst, n);                                                                               \
        WORDS_ENTRY(narrow, name)(dst, src, i);                                                                    \
        for (; i + CPU_LINE_WORDS <= n; i += CPU_LINE_WORDS)                                                       \
            UNROLL for (int k = 0; k < CPU_LINE_WORDS; k += VL) v_stream_##name(dst + i + k, v_load(src + i + k)); \
        WORDS_ENTRY(narrow, name)(dst + i, src + i, n - i);                                                        \
    }
NARROW_STREAM(fp16)
NARROW_STREAM(bf16)

/* The last step of a norm without a stop in a register of the program. */
INLINE vf pivot_one(vf x, const vf p[3])
{
    return v_fma(v_sub(x, p[0]), p[1], p[2]);
}

#define PIVOT(name)                                                                                                \
    static void pivot_some_##name(uint16_t *dst, const float *src, int64_t n, const vf p[3])                       \
    {                                                                                                              \
        uint16_t last[VL];                                                                                         \
        int64_t i = 0;                                                                                             \
        for (; i + VL <= n; i += VL) v_store_##name(dst + i, pivot_one(v_load(src + i), p));                       \
        if (i == n) return;                                                                                        \
        v_store_##name(last, pivot_one(v_load_n(src + i, n - i), p));                                              \
        memcpy(dst + i, last, (size_t)(n - i) * sizeof *dst);                                                      \
    }                                                                                                              \
    static void WORDS_ENTRY(pivot, name)(uint16_t * dst, const float *src, int64_t n, const float p[3])            \
    {                                                                                                              \
        pivot_some_##name(dst, src, n, (const vf[]){v_set1(p[0]), v_set1(p[1]), v_set1(p[2])});                    \
    }                                                                                                              \
    static void WORDS_ENTRY(pivot_stream, name)(uint16_t * dst, const float *src, int64_t n, const float p[3])     \
    {                                                                                                              \
        const vf all[] = {v_set1(p[0]), v_set1(p[1]), v_set1(p[2])};                                               \
        int64_t i = to_line(dst, n);                                                                               \
        pivot_some_##name(dst, src, i, all);                                                                       \
        for (; i + CPU_LINE_WORDS <= n; i += CPU_LINE_WORDS)                                                       \
            UNROLL for (int k = 0; k < CPU_LINE_WORDS; k += VL)                                                    \
                v_stream_##name(dst + i + k, pivot_one(v_load(src + i + k), all));                                 \
        pivot_some_##name(dst + i, src + i, n - i, all);                                                           \
    }
PIVOT(fp16)
PIVOT(bf16)

/* A vector of words comes together on the stack. */
#define STRIDED(name)                                                                                              \
    static void WORDS_ENTRY(take, name)(float *dst, const void *src, int64_t stride, int64_t n)                    \
    {                                                                                                              \
        const uint16_t *from = src;                                                                                \
        for (int64_t i = 0; i < n; i += VL, from += VL * stride) {                                                 \
            uint16_t some[VL] = {0};                                                                               \
            const int64_t most = cvyi_min64(n - i, VL);                                                            \
            for (int64_t k = 0; k < most; k++) some[k] = from[k * stride];                                         \
            v_store_n(dst + i, most, v_load_##name(some));                                                         \
        }                                                                                                          \
    }                                                                                                              \
    static void WORDS_ENTRY(put, name)(void *dst, int64_t stride, const float *src, int64_t n)                     \
    {                                                                                                              \
        uint16_t *to = dst;                                                                                        \
        for (int64_t i = 0; i < n; i += VL, to += VL * stride) {                                                   \
            uint16_t some[VL];                                                                                     \
            const int64_t most = cvyi_min64(n - i, VL);                                                            \
            v_store_##name(some, v_load_n(src + i, most));                                                         \
            for (int64_t k = 0; k < most; k++) to[k * stride] = some[k];                                           \
        }                                                                                                          \
    }
STRIDED(fp16)
STRIDED(bf16)

static void ENTRY(take, VL)(float *dst, const void *src, int64_t stride, int64_t n)
{
    const float *from = src;
    for (int64_t i = 0; i < n; i++) dst[i] = from[i * stride];
}

static void ENTRY(put, VL)(void *dst, int64_t stride, const float *src, int64_t n)
{
    float *to = dst;
    for (int64_t i = 0; i < n; i++) to[i * stride] = src[i];
}

#define BY_WORDS(kernel) [CVY_FLOAT16] = WORDS_ENTRY(kernel, fp16), [CVY_BFLOAT16] = WORDS_ENTRY(kernel, bf16)

const cpu_convert_kernels ISA(cvyi_convert) = {
    .take = {[CVY_FLOAT32] = ENTRY(take, VL), BY_WORDS(take)},
    .put = {[CVY_FLOAT32] = ENTRY(put, VL), BY_WORDS(put)},
    .widen = {BY_WORDS(widen)},
    .narrow = {BY_WORDS(narrow)},
    .narrow_stream = {BY_WORDS(narrow_stream)},
    .pivot = {BY_WORDS(pivot)},
    .pivot_stream = {BY_WORDS(pivot_stream)},
};
