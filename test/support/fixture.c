/* fixture.c - see fixture.h. */
#include <dirent.h>
#include "fixture.h"

int checks, failures;

char cache_dir[SCRATCH_BYTES];

int each_entry(const char *dir, void (*visit)(const char *path, const char *name))
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d))) {
        char path[1024];
        if (e->d_name[0] == '.') continue;
        n++;
        if (snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path) continue;
        if (visit) visit(path, e->d_name);
    }
    if (d) closedir(d);
    return n;
}

void remove_entry(const char *path, const char *name)
{
    (void)name;
    unlink(path);
}

void clear_cache(void)
{
    each_entry(cache_dir, remove_entry);
}

void use_library(const char *program, const char *file, const char *variable, char path[1024])
{
    const char *slash = strrchr(program, '/');

    snprintf(path, 1024, "%.*s/../%s", slash ? (int)(slash - program) : 1, slash ? program : ".", file);
    setenv(variable, path, 1);
}

standin *use_standin(const char *program, const char *file, const char *variable)
{
    char path[1024], name[64];
    standin *(*state)(void);
    void *library, *address;

    snprintf(name, sizeof name, "standin/%s", file);
    use_library(program, name, variable, path);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    address = library ? dlsym(library, "standin_state") : NULL;
    if (!address) {
        fprintf(stderr, "%s: %s\n", path, dlerror());
        exit(1);
    }
    memcpy(&state, &address, sizeof state);
    return state();
}

void use_cache(void)
{
    if (!mkdtemp(scratch_name(cache_dir, "test"))) exit(1);
    setenv("CVY_CACHE", cache_dir, 1);
}

cvy_plan *chain_plan(const char *chain, cvy_precision precision, uint32_t seed)
{
    const cvy_options options = {
        .size = sizeof options, .device = CVY_CUDA, .precision = (int32_t)precision, .seed = seed};
    cvy_graph *graph = NULL;
    cvy_plan *plan = NULL;
    const cvy_status st = cvy_graph_parse(chain, &graph) || cvy_plan_create(graph, &options, &plan);

    CHECK(st == CVY_OK, "%s: %s", chain, cvy_last_error());
    cvy_graph_free(graph);
    return plan;
}

int finish(const char *name)
{
    clear_cache();
    if (cache_dir[0]) rmdir(cache_dir);
    printf("%s: %d checks, %d failed\n", name, checks, failures);
    return failures != 0;
}
