// descriptor.cuh - descriptors, which tell wgmma where an operand is in shared memory.
//
// Operands are K-major, unless told otherwise. Without swizzle: core matrices of 8 rows x 16 bytes, rows
// contiguous, 128 bytes from 8 rows to the next 8. Swizzled: rows of 128 bytes, 1024 bytes from 8 rows to the next
// 8, as tensor copies leave them; the hardware swizzles final addresses, so an operand may start at any row.
#pragma once
#include "ptx.cuh"

// What a descriptor says of an address, in units of 16 bytes. In a cluster the upper bits of addresses are the
// block's rank, and would reach into the descriptor's next field.
__device__ __forceinline__ u32 desc_address(const void *p)
{
    return smem_u32(p) >> 4 & 0x3fff;
}
// addr16: start, lead16: from the first 16 bytes of k to the second, both in units of 16 bytes.
__device__ __forceinline__ u64 wgmma_desc(u32 addr16, u32 lead16)
{
    return 8ull << 32 | (addr16 | lead16 << 16);
}
// 16 terms further is 2 more.
__device__ __forceinline__ u64 wgmma_desc_swizzled(u32 addr16)
{
    return 1ull << 62 | 64ull << 32 | 1ull << 16 | addr16;
}
// Of an operand that lies along its rows (or columns): 64 of them are 128 bytes, swizzled, for each k; eight k are
// 1024 bytes, and lead16 is the distance from 64 rows to the next 64. 16 terms further is 128 more.
__device__ __forceinline__ u64 wgmma_desc_across(u32 addr16, u32 lead16)
{
    return 1ull << 62 | 64ull << 32 | (addr16 | lead16 << 16);
}
