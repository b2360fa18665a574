/* product.c - wgmma by the tables of the PTX manual, a warp's part of it.
 *
 * Of d [64][N], lane 4g + t of warp w in its warpgroup has rows 16w + g and 16w + g + 8, columns 8j + 2t and 8j +
 * 2t + 1. Operands in shared memory: without swizzle core matrices of 8 rows x 16 bytes, contiguous; a descriptor
 * says where the first one is, how far the next is along k (leading) and along the rows (stride), in 16 bytes.
 * Swizzled by 128 bytes, of 16-bit numbers alone: rows of 128 bytes, contiguous by eights; bits 4 to 6 of an
 * element's address are changed by bits 7 to 9, whatever row the operand starts at. Across: 64 columns are 128
 * bytes for each k; stride is from eight k to the next, leading from 64 columns to the next. Products are exact,
 * and are added to the accumulator in double; the sum is cut off, not rounded (emulate/mma.cuh says why). */
#include <stdint.h>
#include <string.h>
#include "numbers.h"
#include "run.h"

enum { CORE_ROWS = 8, CORE_BYTES = 16, SWIZZLED_BYTES = 128, SWIZZLE_128 = 1 };

typedef struct operand {
    const char *shared;
    size_t start, leading, stride;
    bool swizzled;
} operand;

static size_t row_bytes(const operand *o)
{
    return o->swizzled ? SWIZZLED_BYTES : CORE_BYTES;
}

/* Where the 16 bytes lie that are `place` bytes into the operand. */
static const char *find_piece(const operand *o, size_t place)
{
    const size_t at = o->start + place;

    return o->shared + (o->swizzled ? at ^ (at / SWIZZLED_BYTES % CORE_ROWS) * CORE_BYTES : at);
}

static const float *half_values(void)
{
    static float table[1 << 16];
    static bool made;

    for (uint32_t h = 0; h < 1 << 16 && !made; h++) table[h] = emulated_from_half(h);
    made = true;
    return table;
}

/* Bits of a descriptor: start 0-13, leading 16-29, stride 32-45, base offset 49-51, swizzle 62-63. */
static const char *read_descriptor(unsigned long long d, int rows, const char *shared, unsigned shared_bytes,
                                   operand *out)
{
    const unsigned swizzle = (unsigned)(d >> 62);
    size_t end;

    *out = (operand){.shared = shared, .start = (size_t)(d & 0x3fff) * 16, .swizzled = swizzle == SWIZZLE_128};
    out->leading = out->swizzled ? CORE_BYTES : (size_t)(d >> 16 & 0x3fff) * 16;
    out->stride = (size_t)(d >> 32 & 0x3fff) * 16;
    end = out->start + out->leading + (size_t)(rows / CORE_ROWS - 1) * out->stride +
          (CORE_ROWS - 1) * row_bytes(out) + CORE_BYTES;
    if (swizzle > SWIZZLE_128 || d >> 46 & 0xffff || d >> 14 & 3 || d >> 30 & 3)
        return "a wgmma descriptor with bits that are not understood";
    return end > shared_bytes ? "a wgmma descriptor that reaches past the block's shared memory" : NULL;
}

/* Row `row` of an operand: all its k, 16 of fp16 or bf16, or 8 of tf32. */
static void read_row(const operand *o, int row, bool tf32, bool bf16, float out[16])
{
    const float *table = half_values();
    const size_t in_operand = (size_t)(row / CORE_ROWS) * o->stride + (size_t)(row % CORE_ROWS) * row_bytes(o);
    const int half = tf32 ? 4 : 8;

    for (int part = 0; part < 2; part++) {
        const char *at = find_piece(o, in_operand + (size_t)part * o->leading);
        for (int i = 0; i < half; i++) {
            float word = 0;
            uint16_t h = 0;
            if (tf32)
                memcpy(&word, at + 4 * i, sizeof word);
            else
                memcpy(&h, at + 2 * i, sizeof h);
            out[part * half + i] = tf32 ? emulated_tf32(word) : bf16 ? emulated_float((uint32_t)h << 16) : table[h];
        }
    }
}

/* Column `c` of an operand that lies along its columns. */
static void read_across(const operand *o, int c, bool bf16, float out[16])
{
    const float *table = half_values();

    for (size_t k = 0; k < 16; k++) {
        const size_t place = (size_t)(c / 64) * o->leading + k / CORE_ROWS * o->stride +
                             k % CORE_ROWS * SWIZZLED_BYTES + (size_t)(c % 64) * 2;
        uint16_t h = 0;
        memcpy(&h, find_piece(o, place), sizeof h);
        out[k] = bf16 ? emulated_float((uint32_t)h << 16) : table[h];
    }
}

static const char *read_across_descriptor(unsigned long long d, int columns, const char *shared,
                                          unsigned shared_bytes, operand *out)
{
    const char *wrong = read_descriptor(d, CORE_ROWS, shared, shared_bytes, out);

    if (wrong || !out->swizzled) return wrong ? wrong : "an operand across without swizzle";
    out->leading = (size_t)(d >> 16 & 0x3fff) * 16;
    return out->start + (size_t)((columns - 1) / 64) * out->leading + out->stride + 1024 > shared_bytes
               ? "a wgmma descriptor that reaches beyond the block's shared memory"
               : NULL;
}

/* The warp's rows of the first operand, [k][row]. Lane 4g + t brings row g, and row g + 8, where they come from
 * registers. */
static const char *read_rows(const emulated_product *const lanes[EMULATED_LANES], const char *shared,
                             unsigned shared_bytes, int warp, double rows[16][16])
{
    const emulated_product *p = lanes[0];
    const char *wrong = NULL;
    operand a;

    if (!p->in_rows) wrong = read_descriptor(p->a, 64, shared, shared_bytes, &a);
    for (int r = 0; r < 16 && !wrong; r++) {
        float row[16];
        const int terms = p->tf32 ? 8 : 16;
        if (!p->in_rows) read_row(&a, 16 * warp + r, false, p->bf16, row);
        for (int k = 0; k < terms && p->in_rows; k++) row[k] = lanes[4 * (r % 8)]->a_rows[r / 8][k];
        for (int k = 0; k < terms; k++) rows[k][r] = row[k];
    }
    return wrong;
}

const char *product_run(const emulated_product *const lanes[EMULATED_LANES], const char *shared,
                        unsigned shared_bytes, int warp)
{
    const emulated_product *p = lanes[0];
    double rows[16][16], sums[16];
    float column[16];
    operand b;
    const char *wrong = read_rows(lanes, shared, shared_bytes, warp, rows);

    if (!wrong)
        wrong = (p->across ? read_across_descriptor : read_descriptor)(p->b, p->columns, shared, shared_bytes, &b);
    for (int c = 0; c < p->columns && !wrong; c++) {
        const int terms = p->tf32 ? 8 : 16, in_lane = c / 8 * 4 + c % 2;
        if (p->across)
            read_across(&b, c, p->bf16, column);
        else
            read_row(&b, c, p->tf32, p->bf16, column);
        for (int r = 0; r < 16; r++)
            sums[r] = p->accumulate ? lanes[r % 8 * 4 + c % 8 / 2]->d[in_lane + r / 8 * 2] : 0;
        for (int k = 0; k < terms; k++)
            for (int r = 0; r < 16; r++) sums[r] += rows[k][r] * column[k];
        for (int r = 0; r < 16; r++) lanes[r % 8 * 4 + c % 8 / 2]->d[in_lane + r / 8 * 2] = emulated_cut(sums[r]);
    }
    return wrong;
}
