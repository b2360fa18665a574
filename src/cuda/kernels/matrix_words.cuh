// matrix_words.cuh - converts an operand of a matrix product, in any layout, to words (matmul_wide.cuh). Shared by
// matmul_wide_words.cu and matmul_wide_rescale.cu.
//
//   t[0]  words      t[1]  the operand: slots 0 .. 3 hold the strides of its batches, 4 and 5 those along lines and
//   terms
#ifndef CVY_MATRIX_WORDS_CUH
#define CVY_MATRIX_WORDS_CUH

#ifndef LINES
#define LINES 0 // of a matrix; 0: there is one matrix, of a.extent lines
#endif
#ifndef B1 // inner extents of the batches
#define B1 1
#define B2 1
#define B3 1
#endif
#ifndef X_TYPE
#define X_TYPE float
#endif

#include "matmul_wide.cuh"
#include "words.cuh"

constexpr int STRETCHES = cdiv(TERMS, WORD_STRETCH); // of a line

CVY_INLINE long long count_lines(const cvy_args &a)
{
    return LINES ? a.extent * B1 * B2 * B3 * LINES : a.extent;
}

CVY_INLINE const X_TYPE *find_line(const cvy_args &a, long long line)
{
    constexpr int EACH = LINES ? LINES : 1;
    const long long *s = a.t[1].s;
    long long matrix = LINES ? line / EACH : 0, offset = (LINES ? line % EACH : line) * s[4];
    offset += matrix % B3 * s[3], matrix /= B3;
    offset += matrix % B2 * s[2], matrix /= B2;
    offset += matrix % B1 * s[1] + matrix / B1 * s[0];
    return cvy_as<X_TYPE>(a.t[1]) + offset;
}

// Two neighbouring terms as words of each part; those without a scale as they are.
CVY_INLINE void pair_words(float v0, float v1, float scale, u32 (&words)[PARTS])
{
    if (SCALED)
        split_words(v0 * scale, v1 * scale, words);
    else
        words[0] = cvy_narrow(v0, v1, WORD());
}

// Where a part of a line's words begins.
CVY_INLINE u32 *words_of(const cvy_args &a, long long line, int part)
{
    return reinterpret_cast<u32 *>(a.t[0].p) + (part * count_lines(a) + line) * (TERMS_PAD / 2);
}

#endif
