/* npy.h - .npy files: little-endian, C and Fortran order, format versions 1 to 3. Elements by dtype: '<f4' float32,
 * '<f2' fp16, '<u2' bf16 as words of 16 bits, since numpy has no name for it. */
#ifndef CONVOY_CLI_NPY_H
#define CONVOY_CLI_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "aside.h"
#include "convoy.h"

enum { NPY_MESSAGE = 256 }; /* bytes that hold every message */

typedef struct npy_array {
    int32_t rank;
    int64_t dims[CVY_MAX_RANK];
    int64_t count; /* elements */
    cvy_dtype dtype;
    bool fortran;              /* the first dimension runs fastest in `data` */
    const unsigned char *data; /* count little-endian elements, inside the bytes that were parsed; any alignment */
} npy_array;

/* Reads an array out of a file's bytes. False: `message` (NPY_MESSAGE bytes) says what was expected and found.
 * Never reads outside bytes[0 .. n), whatever they are. */
bool npy_parse(const void *bytes, size_t n, npy_array *out, char *message);

/* "<f4": what a file says for a dtype. */
const char *npy_descr(cvy_dtype dtype);

/* The elements in C order. dst holds array->count floats, which hold every element exactly. */
void npy_copy(const npy_array *array, float *dst);

/* A whole file, or what comes out of a pipe; *bytes is the caller's to free, also what array->data points into. */
bool npy_read(const char *path, npy_array *out, void **bytes, char *message);

/* Writes a file aside, for aside_commit to give it its name: a tensor's elements, given as floats, in its dtype.
 * False: nothing is left of it. */
bool npy_write(aside *to, const char *path, const cvy_tensor *t, const float *data, char *message);

#endif
