/* library.c - finds libcuda and NVRTC at run time; see library.h for the order. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "library.h"

enum { MAX_DIRS = 32, PATH_BYTES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char dirs[MAX_DIRS][PATH_BYTES]; /* fixed: set once per process, and never freed while in use */
static int n_dirs;

cvy_status cvyi_cuda_add_dir(const char *dir)
{
    cvy_status st = CVY_OK;
    int i;

    if (!dir || !*dir || strlen(dir) >= PATH_BYTES)
        return cvyi_fail(CVY_INVALID, "cuda: a library directory has 1 to %d characters", PATH_BYTES - 1);
    pthread_mutex_lock(&lock);
    for (i = 0; i < n_dirs && strcmp(dirs[i], dir) != 0; i++) continue;
    if (i == MAX_DIRS)
        st = cvyi_fail(CVY_INVALID, "cuda: more than %d library directories", MAX_DIRS);
    else if (i == n_dirs)
        strcpy(dirs[n_dirs++], dir);
    pthread_mutex_unlock(&lock);
    return st;
}

/* One search; it records what it tries, for the message if all fails. */
typedef struct search {
    const char *const *names;
    char tried[640];
    char reason[256]; /* the loader's message about the last file that exists but could not be opened */
    void *handle;
} search;

static void note(search *s, const char *where)
{
    const size_t len = strlen(s->tried);
    snprintf(s->tried + len, sizeof s->tried - len, "%s%s", len ? ", " : "", where);
}

static bool opened(search *s, const char *file, int flags)
{
    s->handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | flags);
    if (!s->handle) {
        const char *why = dlerror();
        if (why && !strstr(why, "No such file")) snprintf(s->reason, sizeof s->reason, "%s", why);
    }
    return s->handle != NULL;
}

static bool in_dir(search *s, const char *dir, const char *below)
{
    char file[2 * PATH_BYTES];

    snprintf(file, sizeof file, "%s%s", dir, below);
    note(s, file);
    for (int i = 0; s->names[i]; i++) {
        snprintf(file, sizeof file, "%s%s/%s", dir, below, s->names[i]);
        if (opened(s, file, 0)) return true;
    }
    return false;
}

static bool by_name(search *s, int flags, const char *where)
{
    note(s, where);
    for (int i = 0; s->names[i]; i++)
        if (opened(s, s->names[i], flags)) return true;
    return false;
}

static bool in_handed_dirs(search *s)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_dirs && !found; i++) found = in_dir(s, dirs[i], "");
    pthread_mutex_unlock(&lock);
    return found;
}

static bool in_toolkit(search *s)
{
    static const char *const variables[] = {"CUDA_PATH", "CUDA_HOME"};
    static const char *const below[] = {"/lib64", "/lib", "/targets/x86_64-linux/lib"};

    for (int v = 0; v < COUNT_OF(variables); v++) {
        const char *root = getenv(variables[v]);
        for (int b = 0; root && *root && b < COUNT_OF(below); b++)
            if (in_dir(s, root, below[b])) return true;
    }
    return false;
}

cvy_status cvyi_library_open(const char *what, const char *variable, const char *path, const char *const *names,
                             void **out)
{
    search s = {.names = names};
    bool found;

    if (path) {
        if (!opened(&s, path, 0))
            return cvyi_fail(CVY_NO_DEVICE, "%s: %s=%s cannot be opened: %s", what, variable, path,
                             s.reason[0] ? s.reason : "no such file");
    } else {
        found = by_name(&s, RTLD_NOLOAD, "libraries already loaded") || in_handed_dirs(&s) ||
                by_name(&s, 0, "the loader's search") || in_toolkit(&s);
        if (!found)
            return cvyi_fail(CVY_NO_DEVICE, "%s: %s not found; looked in: %s (set %s to its path)%s%s", what,
                             names[0], s.tried, variable, s.reason[0] ? "; " : "", s.reason);
    }
    *out = s.handle;
    return CVY_OK;
}
