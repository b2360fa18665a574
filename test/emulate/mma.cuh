// mma.cuh - the functions of src/cuda/kernels/mma.cuh by the emulator, written from the tables of the PTX manual.
//
// cvt.rna.tf32: 10 of the 23 bits after the point are kept, halves go away from zero. mma.m16n8k8 with .tf32:
// every lane puts its parts into whole matrices, rows and columns by the manual's formulas (groupID = lane / 4,
// threadID_in_group = lane % 4), and takes its own results from their product. Operands lose the bits tf32 has not;
// products (exact) and accumulator are added in double, and the sum is cut off, not rounded: the manual leaves the
// rounding open, and this is the worst of those that devices are known to have.
#ifndef CVY_MMA_CUH
#define CVY_MMA_CUH

#include "common.cuh"
#include "numbers.h"

CVY_INLINE float cvy_to_tf32(float x)
{
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return __uint_as_float(0x7fffe000u); // NaN
    return __uint_as_float((bits + 0x1000u) & 0xffffe000u); // inf stays; the largest become inf
}

CVY_INLINE void cvy_mma(float d[4], const float a[4], const float b[2])
{
    const float mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const emulated_deposit *all = emulated_now.meet(0xffffffffu, mine, sizeof mine);
    double A[16][8], B[8][8];

    for (int lane = 0; lane < EMULATED_LANES; lane++) {
        const int group = lane >> 2, in_group = lane % 4;
        float theirs[6];
        memcpy(theirs, all[lane], sizeof theirs);
        for (int i = 0; i < 4; i++) {
            const int row = i == 0 || i == 2 ? group : group + 8, column = i < 2 ? in_group : in_group + 4;
            A[row][column] = emulated_tf32(theirs[i]);
        }
        for (int i = 0; i < 2; i++) B[in_group + 4 * i][group] = emulated_tf32(theirs[4 + i]);
    }
    for (int i = 0; i < 4; i++) {
        const int lane = emulated_lane();
        const int row = i < 2 ? lane >> 2 : (lane >> 2) + 8, column = lane % 4 * 2 + (i & 1);
        double sum = d[i];
        for (int k = 0; k < 8; k++) sum += A[row][k] * B[k][column];
        d[i] = emulated_cut(sum);
    }
}

// ldmatrix: every lane brings the 16 bytes that it points to.
CVY_INLINE void cvy_load_blocks(float d[4], const float *row)
{
    const int lane = emulated_lane();
    const emulated_deposit *all;

    if ((unsigned long long)row % 16) emulated_now.fail("a row of ldmatrix that is not aligned");
    all = emulated_now.meet(0xffffffffu, row, 16);
    for (int block = 0; block < 4; block++)
        memcpy(&d[block], all[8 * block + lane / 4] + 4 * (lane % 4), sizeof *d);
}

#endif
