/* cmd_cache.c - `convoy cache`: compiled kernels and measured plans on disk. */
#include <string.h>
#include <time.h>
#include "../src/util/cache.h"
#include "cli.h"

typedef struct held {
    cache_file *files; /* the one used longest ago first */
    int n;
    char place[CACHE_PATH_BYTES];
} held;

static int64_t bytes_of(const held *h)
{
    int64_t total = 0;
    for (int i = 0; i < h->n; i++) total += h->files[i].bytes;
    return total;
}

static int size(const held *h)
{
    printf("%d entries, %.1f of %.0f MB in %s\n", h->n, 1e-6 * (double)bytes_of(h),
           1e-6 * (double)cvyi_cache_limit(), h->place);
    return EXIT_FINE;
}

static int list(const held *h)
{
    for (int i = 0; i < h->n; i++) {
        const time_t used = (time_t)h->files[i].used;
        struct tm when;
        char day[32] = "?";
        if (localtime_r(&used, &when)) strftime(day, sizeof day, "%Y-%m-%d %H:%M", &when);
        printf("%s %9lld %s\n", day, (long long)h->files[i].bytes, h->files[i].name);
    }
    return size(h);
}

/* A damaged entry only costs time, because it is compiled again. Here it is reported and removed. */
static int verify(const held *h)
{
    int damaged = 0;

    for (int i = 0; i < h->n; i++) {
        if (cvyi_cache_verify(&h->files[i])) continue;
        printf("%s is damaged: removed\n", h->files[i].name);
        cvyi_cache_remove(&h->files[i]);
        damaged++;
    }
    printf("%d entries, %d damaged\n", h->n, damaged);
    return damaged ? EXIT_CHECK_FAILED : EXIT_FINE;
}

static int clear(const held *h)
{
    for (int i = 0; i < h->n; i++) cvyi_cache_remove(&h->files[i]);
    printf("%d entries, %.1f MB removed from %s\n", h->n, 1e-6 * (double)bytes_of(h), h->place);
    return EXIT_FINE;
}

int cmd_cache(const options *o)
{
    static const struct {
        const char *name;
        int (*run)(const held *h);
    } actions[] = {{"list", list}, {"verify", verify}, {"clear", clear}, {"size", size}};
    const char *wanted = o->chain ? o->chain : "size";
    held h = {NULL, 0, ""};

    if (cvyi_env_check()) return cli_library_error("");
    for (size_t i = 0; i < sizeof actions / sizeof *actions; i++) {
        int st;
        if (strcmp(wanted, actions[i].name) != 0) continue;
        cvyi_cache_place(h.place);
        if (!h.place[0]) return cli_error("there is no cache: CVY_CACHE is off, or there is no home directory");
        cvyi_cache_files(&h.files, &h.n);
        st = actions[i].run(&h);
        cvyi_free(h.files);
        return st;
    }
    return cli_error("cache takes list, verify, clear or size, not '%s'", wanted);
}
