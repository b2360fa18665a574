/* module.c - a kernel's object, which nvrtc.c compiled, is loaded as a shared library. */
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../standin/scratch.h"
#include "run.h"

/* CVY_EMULATE_ARCH=90: compute capability 9.0, with as many multiprocessors as blocks can be resident.
 * CVY_EMULATE_ALONE: blocks may not wait for each other. */
device_model device_describe(void)
{
    static const device_model ampere = {"emulator", 80, 132, 163 << 10, true},
                              hopper = {"emulator", 90, EMULATED_RESIDENT, EMULATED_SHARED, true};
    const char *arch = getenv("CVY_EMULATE_ARCH");
    device_model d = arch && strcmp(arch, "90") == 0 ? hopper : ampere;

    d.cooperative = !getenv("CVY_EMULATE_ALONE");
    return d;
}

/* The table of sections is the last thing in what the linker writes. */
static size_t image_bytes(const void *image)
{
    const Elf64_Ehdr *head = image;

    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0) return 0;
    return head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
}

/* The loader wants a file, under a name that no library has which is still open. */
static void *open_image(const void *image, size_t bytes)
{
    char path[SCRATCH_BYTES];
    void *library = NULL;
    int file;

    file = mkstemp(scratch_name(path, "kernel"));
    if (file < 0) return NULL;
    if (write(file, image, bytes) == (ssize_t)bytes) library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fprintf(stderr, "emulate: %s: %s\n", path, dlerror());
    close(file);
    unlink(path);
    return library;
}

static bool find(void *library, const char *name, void *slot)
{
    void *address = dlsym(library, name);
    memcpy(slot, &address, sizeof address);
    return address != NULL;
}

void *device_load(const void *image)
{
    const size_t bytes = image_bytes(image);
    emulated_kernel *k = calloc(1, sizeof *k);
    char *(*begin)(void), *(*end)(void);
    const int *cluster;

    if (k && bytes) k->library = open_image(image, bytes);
    if (k && k->library && find(k->library, "emulated_entry", &k->call) &&
        find(k->library, "emulated_now", &k->now) && find(k->library, "emulated_shared_begin", &begin) &&
        find(k->library, "emulated_shared_end", &end) && find(k->library, "emulated_cluster", &cluster)) {
        k->shared_begin = begin();
        k->shared_end = end();
        memcpy(k->cluster, cluster, sizeof k->cluster);
        return k;
    }
    device_unload(k);
    return NULL;
}

void device_unload(void *kernel)
{
    emulated_kernel *k = kernel;

    if (k && k->library) dlclose(k->library);
    free(k);
}

void device_allow_shared(void *kernel, int bytes)
{
    ((emulated_kernel *)kernel)->allowed_shared = bytes;
}

int device_allowed_shared(const void *kernel)
{
    return ((const emulated_kernel *)kernel)->allowed_shared;
}

int device_attribute(const void *kernel, int attribute)
{
    const emulated_kernel *k = kernel;

    if (attribute == CU_FUNC_SHARED_BYTES) return (int)(k->shared_end - k->shared_begin);
    return attribute == CU_FUNC_MAX_THREADS ? EMULATED_THREADS : 0;
}
