/* fuzz_npy.c - libFuzzer target: any bytes as an .npy file. What is accepted is copied out in full, so that the
 * sanitizers see every byte the header promised; what is refused has a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../cli/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char message[NPY_MESSAGE] = "";
    uint8_t *bytes = malloc(size ? size : 1); /* of exactly this size, so that a read past it is seen */
    npy_array array;

    if (size) memcpy(bytes, data, size);
    if (npy_parse(bytes, size, &array, message)) {
        int64_t count = 1;
        float *copy;
        for (int i = 0; i < array.rank; i++) count *= array.dims[i];
        if (count != array.count || (size_t)count > size / 2) abort();
        copy = malloc((size_t)count * sizeof *copy + 1);
        npy_copy(&array, copy);
        free(copy);
    } else if (!*message || strlen(message) >= NPY_MESSAGE) {
        abort();
    }
    free(bytes);
    return 0;
}
