/* sha256.h - the digest of FIPS 180-4, for the names and the checks of the compile cache. */
#ifndef CVYI_SHA256_H
#define CVYI_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

typedef struct sha256 {
    uint32_t state[8];
    uint64_t bytes; /* taken in so far */
    unsigned char block[64];
} sha256;

void cvyi_sha256_start(sha256 *s);
void cvyi_sha256_add(sha256 *s, const void *data, size_t bytes);
void cvyi_sha256_end(sha256 *s, unsigned char digest[SHA256_BYTES]);

#endif
