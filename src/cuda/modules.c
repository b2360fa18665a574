/* modules.c - see modules.h. One table for the process, by device and key, guarded by one lock, because any thread
 * may create and free plans. */
#include <pthread.h>
#include <string.h>
#include "modules.h"

struct cuda_loaded {
    struct cuda_loaded *next;
    cache_key key;
    CUcontext ctx;
    cuda_kernel kernel; /* the loaded kernel; its member `loaded` is this record */
    int dynamic_shared; /* that was allowed so far */
    int holders;
};

enum { BUCKETS = 256 };
static struct cuda_loaded *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct cuda_loaded **bucket_of(const cache_key *key)
{
    return &table[key->digest[0] % BUCKETS];
}

static struct cuda_loaded *find(const cuda_device *d, const cache_key *key)
{
    for (struct cuda_loaded *l = *bucket_of(key); l; l = l->next)
        if (l->ctx == d->ctx && memcmp(&l->key, key, sizeof *key) == 0) return l;
    return NULL;
}

/* One more holder. The allowed size only grows, because other holders may launch with theirs. */
static cvy_status hold(const cuda_device *d, struct cuda_loaded *l, int dynamic_shared, cuda_kernel *out)
{
    cvy_status st = CVY_OK;

    if (dynamic_shared > l->dynamic_shared) TRY(cvyi_cuda_allow_shared(d, &l->kernel, dynamic_shared));
    l->dynamic_shared = (int)cvyi_max64(l->dynamic_shared, dynamic_shared);
    l->holders++;
    *out = l->kernel;
fail:
    return st;
}

cvy_status cvyi_modules_find(const cuda_device *d, const cache_key *key, int dynamic_shared, cuda_kernel *out)
{
    struct cuda_loaded *l;
    cvy_status st = CVY_OK;

    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&lock);
    l = find(d, key);
    if (l) st = hold(d, l, dynamic_shared, out);
    pthread_mutex_unlock(&lock);
    return st;
}

static cvy_status load(const cuda_device *d, const cache_key *key, const jit_code *code, const char *entry,
                       int dynamic_shared, cuda_kernel *out)
{
    struct cuda_loaded *l = cvyi_alloc(1, sizeof *l), **bucket = bucket_of(key);
    cvy_status st;

    if (!l) return CVY_NO_MEMORY;
    TRY(cvyi_cuda_load(d, code, entry, dynamic_shared, &l->kernel));
    l->kernel.loaded = l;
    l->key = *key;
    l->ctx = d->ctx;
    l->dynamic_shared = dynamic_shared;
    l->holders = 1;
    l->next = *bucket;
    *bucket = l;
    *out = l->kernel;
    return CVY_OK;
fail:
    cvyi_free(l);
    return st;
}

cvy_status cvyi_modules_load(const cuda_device *d, const cache_key *key, const jit_code *code, const char *entry,
                             int dynamic_shared, cuda_kernel *out)
{
    struct cuda_loaded *l;
    cvy_status st;

    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&lock);
    l = find(d, key); /* another thread may have been faster */
    st = l ? hold(d, l, dynamic_shared, out) : load(d, key, code, entry, dynamic_shared, out);
    pthread_mutex_unlock(&lock);
    return st;
}

void cvyi_modules_give(const cuda_device *d, cuda_kernel *k)
{
    struct cuda_loaded *l = k->loaded, **at;

    if (!l) return;
    pthread_mutex_lock(&lock);
    if (!--l->holders) {
        for (at = bucket_of(&l->key); *at != l;) at = &(*at)->next;
        *at = l->next;
        cvyi_cuda_unload(d, &l->kernel);
        cvyi_free(l);
    }
    pthread_mutex_unlock(&lock);
    memset(k, 0, sizeof *k);
}
