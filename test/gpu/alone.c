/* alone.c - libcuda, but for one answer: blocks of this device may not wait for each other (no cooperative
 * launches).
 *
 * Loaded in libcuda's place (CVY_CUDA_LIB). The engine asks for all calls through cuGetProcAddress_v2, and gets the
 * driver's own for all but one. Passes that would exchange statistics between their blocks are then launched apart
 * (prove.sh, part apart). */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { COOPERATIVE_LAUNCH = 95, NOT_FOUND = 500 }; /* an attribute of devices; a result */

typedef int ask_attribute(int *value, int attribute, int device);
typedef int get_address(const char *name, void **address, int version, uint64_t flags, void *status);

static ask_attribute *drivers_own;

static int attribute_of(int *value, int attribute, int device)
{
    const int result = drivers_own(value, attribute, device);

    if (result == 0 && attribute == COOPERATIVE_LAUNCH) *value = 0;
    return result;
}

get_address cuGetProcAddress_v2;

int cuGetProcAddress_v2(const char *name, void **address, int version, uint64_t flags, void *status)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    get_address *lookup = NULL;
    ask_attribute *mine = attribute_of;
    int result = NOT_FOUND;

    if (driver) *(void **)&lookup = dlsym(driver, "cuGetProcAddress_v2");
    if (lookup) result = lookup(name, address, version, flags, status);
    if (result == 0 && strcmp(name, "cuDeviceGetAttribute") == 0) {
        memcpy(&drivers_own, address, sizeof drivers_own);
        memcpy(address, &mine, sizeof mine);
    }
    return result;
}
