/* turn.c - a matrix copied with rows and columns exchanged, between floats and elements of any dtype. See
 * ../convert.h.
 *
 * Blocks of VL x VL elements are exchanged in registers, so both sides are read and written along their own rows.
 * Where the elements have only a few columns (an image of 3 channels, channels last), most of a block would be
 * empty, and they are copied with a stride instead. Bound: memory. */
#include "../source.h"

enum { FEW = VL / 4 };

INLINE void *result_at(void *y, int64_t i, const cvy_dtype type)
{
    return type == CVY_FLOAT32 ? (void *)((float *)y + i) : (void *)((uint16_t *)y + i);
}

/* The first n of VL lanes. */
INLINE void store_first(void *dst, int64_t n, vf a, const cvy_dtype type)
{
    uint16_t words[VL];
    if (type == CVY_FLOAT32) {
        v_store_n(dst, n, a);
        return;
    }
    if (type == CVY_FLOAT16)
        v_store_fp16(words, a);
    else
        v_store_bf16(words, a);
    memcpy(dst, words, (size_t)n * sizeof *words);
}

/* dst[k * to + l] = src[l * from + k] for k < rows, l < columns, both at most VL. */
INLINE void block(void *dst, int64_t to, const void *src, int64_t from, int64_t rows, int64_t columns,
                  const cvy_dtype into, const cvy_dtype of)
{
    vf a[VL];
    UNROLL for (int l = 0; l < VL; l++)
    {
        if (l >= columns)
            a[l] = v_zero();
        else
            a[l] = rows == VL ? source_load(src, l * from, of) : source_load_range(src, l * from, 0, rows, of);
    }
    v_turn(a);
    UNROLL for (int k = 0; k < VL; k++)
    {
        if (k < rows) store_first(result_at(dst, k * to, into), columns, a[k], into);
    }
}

/* Blocks along the result's rows: what is stored goes on there. */
INLINE void turn_blocks(void *dst, int64_t to, const void *src, int64_t from, int64_t rows, int64_t columns,
                        const cvy_dtype into, const cvy_dtype of)
{
    for (int64_t i = 0; i < rows; i += VL) {
        const int64_t high = cvyi_min64(VL, rows - i);
        void *row = result_at(dst, i * to, into);
        int64_t j = 0;
        for (; high == VL && j + VL <= columns; j += VL)
            block(result_at(row, j, into), to, source_at(src, j * from + i, of), from, VL, VL, into, of);
        for (; j < columns; j += VL)
            block(result_at(row, j, into), to, source_at(src, j * from + i, of), from, high,
                  cvyi_min64(VL, columns - j), into, of);
    }
}

INLINE void turn(void *dst, int64_t to, const void *src, int64_t from, int64_t rows, int64_t columns,
                 const cvy_dtype into, const cvy_dtype of)
{
    const cpu_convert_kernels *strided = &ISA(cvyi_convert);
    if (into == CVY_FLOAT32 && rows <= FEW)
        for (int64_t i = 0; i < rows; i++)
            strided->take[of]((float *)dst + i * to, source_at(src, i, of), from, columns);
    else if (of == CVY_FLOAT32 && columns <= FEW)
        for (int64_t j = 0; j < columns; j++)
            strided->put[into](result_at(dst, j, into), to, (const float *)src + j * from, rows);
    else
        turn_blocks(dst, to, src, from, rows, columns, into, of);
}

#define TURN_NAME(of, into) ISA(CVYI_PASTE(turn_##of##_##into##_, VL))
#define TURN(of, OF, into, INTO)                                                                                   \
    static void TURN_NAME(of, into)(void *dst, int64_t to, const void *src, int64_t from, int64_t rows,            \
                                    int64_t columns)                                                               \
    {                                                                                                              \
        turn(dst, to, src, from, rows, columns, INTO, OF);                                                         \
    }
TURN(f32, CVY_FLOAT32, f32, CVY_FLOAT32)
TURN(f32, CVY_FLOAT32, f16, CVY_FLOAT16)
TURN(f32, CVY_FLOAT32, bf16, CVY_BFLOAT16)
TURN(f16, CVY_FLOAT16, f32, CVY_FLOAT32)
TURN(bf16, CVY_BFLOAT16, f32, CVY_FLOAT32)

const cpu_turn_kernels ISA(cvyi_turn) = {
    .in = {[CVY_FLOAT32] = TURN_NAME(f32, f32),
           [CVY_FLOAT16] = TURN_NAME(f16, f32),
           [CVY_BFLOAT16] = TURN_NAME(bf16, f32)},
    .out = {[CVY_FLOAT32] = TURN_NAME(f32, f32),
            [CVY_FLOAT16] = TURN_NAME(f32, f16),
            [CVY_BFLOAT16] = TURN_NAME(f32, bf16)},
};
