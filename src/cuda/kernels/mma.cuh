// mma.cuh - a warp's product of small tf32 matrices, and its operands out of shared memory: one PTX instruction per
// function, and nothing else, so that test/emulate can put its own in their place.
//
// cvy_mma: d[16][8] += a[16][8] * b[8][8]. What lane 4g + t of the warp holds (PTX, mma.m16n8k8 with .tf32):
//
//   a[0] row g, k t     a[1] row g + 8, k t     a[2] row g, k t + 4     a[3] row g + 8, k t + 4
//   b[0] k t, column g                          b[1] k t + 4, column g
//   d[0] row g, column 2t   d[1] row g, column 2t + 1   d[2] row g + 8, column 2t   d[3] row g + 8, column 2t + 1
#ifndef CVY_MMA_CUH
#define CVY_MMA_CUH

#include "common.cuh"

// To the nearest of tf32's 11 significant bits, ties away from zero; inf and NaN stay. Finite values within 2^-12
// of the largest float become inf.
CVY_INLINE float cvy_to_tf32(float x)
{
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}

// Operands must be tf32's. Products are exact; how their sum is rounded is the device's business (it cuts off).
CVY_INLINE void cvy_mma(float d[4], const float a[4], const float b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// Four blocks of 8 rows x 4 floats out of shared memory: lane 8b + r says where row r of block b begins, at a
// multiple of 16 bytes; lane 4g + t gets float t of row g of each block.
CVY_INLINE void cvy_load_blocks(float d[4], const float *row)
{
    unsigned r[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; i++) d[i] = __uint_as_float(r[i]);
}

#endif
