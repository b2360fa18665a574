/* openmp.c - finds the OpenMP runtime that is loaded. See openmp.h. */
#include "openmp.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct {
    atomic_bool own;            /* CVY_POOL=own */
    atomic_bool forked;         /* this process is a child that has no team */
    atomic_bool found;          /* `runtime` is complete: it is not written again */
    atomic_ullong loads_looked; /* number of libraries loaded so far, when none of them was a runtime */
    pthread_mutex_t lock;       /* held while looking */
    openmp runtime;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- forks ---- */

static void note_fork(void)
{
    atomic_store(&process.forked, true);
}

/* When the library is loaded, not at the first call, because the child of a fork in between has no team either. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, note_fork);
}

/* ---- finding a runtime ---- */

/* The number of libraries that the process has loaded so far, from the first object's callback. */
static int read_loads(struct dl_phdr_info *info, size_t size, void *out)
{
    (void)size;
    *(unsigned long long *)out = info->dlpi_adds;
    return 1;
}

/* Object files whose name is that of a runtime. A wheel may carry one as libgomp-a34b3233.so.1. */
typedef struct named {
    int count;
    char path[PATH_MAX]; /* of the last */
} named;

static int read_name(struct dl_phdr_info *info, size_t size, void *out)
{
    static const char *const prefixes[] = {"libgomp.", "libgomp-", "libomp.", "libomp-", "libiomp5."};
    named *n = out;
    const char *slash = strrchr(info->dlpi_name, '/'), *file = slash ? slash + 1 : info->dlpi_name;
    (void)size;
    for (int i = 0; i < COUNT_OF(prefixes); i++) {
        if (strncmp(file, prefixes[i], strlen(prefixes[i])) != 0 || strlen(info->dlpi_name) >= PATH_MAX) continue;
        strcpy(n->path, info->dlpi_name);
        n->count++;
    }
    return 0;
}

static bool bind(void *scope)
{
    openmp *r = &process.runtime;
    const struct {
        void *entry;
        const char *name;
    } symbols[] = {{&r->parallel, "GOMP_parallel"},
                   {&r->max_threads, "omp_get_max_threads"},
                   {&r->num_threads, "omp_get_num_threads"},
                   {&r->thread_num, "omp_get_thread_num"},
                   {&r->in_parallel, "omp_in_parallel"}};
    Dl_info where;
    for (int i = 0; i < COUNT_OF(symbols); i++) {
        void *address = dlsym(scope, symbols[i].name);
        if (!address) return false;
        memcpy(symbols[i].entry, &address, sizeof address);
    }
    /* One more reference, never dropped, so the runtime cannot be unloaded. */
    if (!dladdr((void *)(uintptr_t)r->parallel, &where)) return false;
    dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    cvyi_log(1, "cpu: parts run on the OpenMP team of %s", where.dli_fname);
    return true;
}

/* A library that is loaded already; closed again when it is not needed. */
static bool bind_within(const char *library)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    const bool bound = handle && bind(handle);
    if (handle) dlclose(handle);
    return bound;
}

/* A runtime with global symbols serves the whole process. Without one, several may be loaded side by side, each by
 * a different library: then PyTorch's is used. One that only others use would be a second pool again. */
static bool look(void)
{
    named runtimes = {0};
    if (bind(RTLD_DEFAULT) || bind_within("libtorch_cpu.so")) return true;
    dl_iterate_phdr(read_name, &runtimes);
    return runtimes.count == 1 && bind_within(runtimes.path);
}

/* ---- the interface ---- */

cvy_status cvyi_openmp_choose(void)
{
    const char *word = cvyi_env(ENV_POOL);
    const bool own = word && strcmp(word, "own") == 0;
    if (word && !own && strcmp(word, "openmp") != 0)
        return cvyi_fail(CVY_INVALID, "CVY_POOL is '%s', expected own or openmp", word);
    atomic_store(&process.own, own);
    return CVY_OK;
}

const openmp *cvyi_openmp(void)
{
    unsigned long long loads = 0;
    if (atomic_load(&process.own) || atomic_load(&process.forked)) return NULL;
    if (atomic_load(&process.found)) return &process.runtime;
    dl_iterate_phdr(read_loads, &loads);
    if (loads == atomic_load(&process.loads_looked)) return NULL;
    pthread_mutex_lock(&process.lock);
    if (!atomic_load(&process.found) && look()) atomic_store(&process.found, true);
    atomic_store(&process.loads_looked, loads);
    pthread_mutex_unlock(&process.lock);
    return atomic_load(&process.found) ? &process.runtime : NULL;
}
