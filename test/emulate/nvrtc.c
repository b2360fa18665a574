/* nvrtc.c - a libnvrtc that compiles kernels for the host, with the C++ compiler in CXX; else g++, else clang++.
 *
 * Sources and headers are laid into a folder of their own as they came, with two exceptions: a header that this
 * directory has under the same name takes its place (those are the ones with inline PTX), and dynamic shared
 * memory, `extern __shared__ T name[];`, becomes a pointer. "Machine code" is the shared object; its log is the
 * compiler's. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../src/cuda/api.h"
#include "../standin/scratch.h"

#define EXPORT __attribute__((visibility("default")))
enum { MAX_FILES = 64, MAX_OPTIONS = 96, PATH_BYTES = 512, FAILED = 11 };

typedef struct bytes {
    char *data;
    size_t size;
} bytes;

struct nvrtcProgram_st {
    const char *name[MAX_FILES], *text[MAX_FILES]; /* [0] is compiled; they stay the caller's until it is */
    int n_files;
    bytes object, log;
};

extern char **environ;

EXPORT const char *nvrtcGetErrorString(nvrtcResult result)
{
    return result == NVRTC_ERROR_COMPILATION ? "the compiler refuses it" : strerror(errno);
}
/* One that no real library has: its objects never meet a GPU's in a cache. */
EXPORT nvrtcResult nvrtcVersion(int *major, int *minor)
{
    *major = 99;
    *minor = 0;
    return 0;
}
EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    *count = 2;
    return 0;
}
EXPORT nvrtcResult nvrtcGetSupportedArchs(int *archs)
{
    archs[0] = 80;
    archs[1] = 90;
    return 0;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int n_headers,
                                      const char *const *headers, const char *const *header_names)
{
    struct nvrtcProgram_st *p = calloc(1, sizeof *p);

    if (!p || n_headers >= MAX_FILES) return free(p), NVRTC_ERROR_OUT_OF_MEMORY;
    p->name[0] = name;
    p->text[0] = source;
    memcpy(p->name + 1, header_names, (size_t)n_headers * sizeof *p->name);
    memcpy(p->text + 1, headers, (size_t)n_headers * sizeof *p->text);
    p->n_files = n_headers + 1;
    *program = p;
    return 0;
}
EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    free((*program)->object.data);
    free((*program)->log.data);
    free(*program);
    *program = NULL;
    return 0;
}

/* ---- files ---- */

static void path_in(char out[PATH_BYTES], const char *folder, const char *name)
{
    snprintf(out, PATH_BYTES, "%s/%s", folder, name);
}

static bytes read_all(const char *folder, const char *name)
{
    char path[PATH_BYTES];
    struct stat about;
    bytes b = {0};
    FILE *f;

    path_in(path, folder, name);
    f = fopen(path, "r");
    if (f && fstat(fileno(f), &about) == 0 && (b.data = calloc(1, (size_t)about.st_size + 1)))
        b.size = fread(b.data, 1, (size_t)about.st_size, f);
    if (f) fclose(f);
    return b;
}

/* `extern __shared__ __align__(16) float name[];` as `float *const name = (float *)emulated_now.shared;`: the last
 * word before the brackets is the name, what precedes it the type. Lines keep their numbers. */
static const char *write_dynamic(FILE *f, const char *at)
{
    const char *type = at + strlen("extern __shared__"), *end = strchr(type, ';'), *bracket = strchr(type, '[');
    const char *name = bracket;

    while (name > type && name[-1] != ' ') name--;
    if (strncmp(type, " __align__(", 11) == 0) type = strchr(type, ')') + 1;
    fprintf(f, "%.*s*const %.*s = (%.*s*)emulated_now.shared", (int)(name - type), type, (int)(bracket - name),
            name, (int)(name - type), type);
    return end;
}

static int write_source(const char *folder, const char *name, const char *text)
{
    char path[PATH_BYTES];
    const char *at;
    FILE *f;
    int good;

    path_in(path, folder, name);
    f = fopen(path, "w");
    if (!f) return 0;
    while ((at = strstr(text, "extern __shared__"))) {
        fwrite(text, 1, (size_t)(at - text), f);
        text = write_dynamic(f, at);
    }
    fputs(text, f);
    good = !ferror(f);
    return fclose(f) == 0 && good;
}

/* Without a name outside of this file, so that shared memory of inline functions lies with everybody's. Clusters
 * are those of the kernel's own macros, where it has __cluster_dims__. */
static int write_main(const char *folder, const char *source, const char *text_of_it)
{
    static const char named[] = "__cluster_dims__(CLUSTER_N, CLUSTER_M, 1)";
    const bool clusters = strstr(text_of_it, named) != NULL;
    char text[2 * PATH_BYTES];

    if (!clusters && strstr(text_of_it, "__cluster_dims__")) return 0;
    snprintf(text, sizeof text,
             "#include \"device.cuh\"\nnamespace {\n#include \"%s\"\n}\n"
             "extern \"C\" __attribute__((visibility(\"default\"))) void emulated_entry(void **arguments)\n"
             "{\n    emulated_call(KERNEL_NAME, arguments);\n}\n"
             "extern \"C\" __attribute__((visibility(\"default\"))) const int emulated_cluster[2] = {%s};\n",
             source, clusters ? "CLUSTER_N, CLUSTER_M" : "1, 1");
    return write_source(folder, "main.cpp", text);
}

static int write_files(const struct nvrtcProgram_st *p, const char *folder)
{
    char path[PATH_BYTES];

    for (int i = 0; i < p->n_files; i++) {
        path_in(path, EMULATE_DIR, p->name[i]);
        if (access(path, R_OK) == 0) continue; /* ours is found instead */
        if (!write_source(folder, p->name[i], p->text[i])) return 0;
    }
    return write_main(folder, p->name[0], p->text[0]);
}

static void remove_files(const struct nvrtcProgram_st *p, const char *folder)
{
    static const char *const others[] = {"main.cpp", "kernel.so", "log.txt"};
    char path[PATH_BYTES];

    for (int i = 0; i < p->n_files; i++) path_in(path, folder, p->name[i]), unlink(path);
    for (int i = 0; i < 3; i++) path_in(path, folder, others[i]), unlink(path);
    rmdir(folder);
}

/* ---- compiling ---- */

/* The first of the compilers that is there. */
static int spawn_one(pid_t *child, const posix_spawn_file_actions_t *files, const char **arguments)
{
    const char *const compilers[] = {getenv("CXX"), "g++", "clang++"};
    char *const *list; /* the same: posix_spawnp() writes to none of them, and has another type */
    int error = ENOENT;

    memcpy(&list, &arguments, sizeof list);
    for (int i = 0; i < 3 && error == ENOENT; i++) {
        if (!compilers[i] || !*compilers[i]) continue;
        arguments[0] = compilers[i];
        error = posix_spawnp(child, arguments[0], files, NULL, list, environ);
    }
    return error;
}

/* The compiler's exit status; negative: it did not run. Only macros mean the same to both compilers. */
static int run_compiler(const char *folder, int n_options, const char *const *options)
{
    char source[PATH_BYTES], object[PATH_BYTES], log[PATH_BYTES];
    const char *arguments[MAX_OPTIONS] = {"",
                                          "-std=c++17",
                                          "-O1",
                                          "-w",
                                          "-fPIC",
                                          "-shared",
                                          "-nostdlib",
                                          "-fvisibility=hidden",
                                          "-fno-exceptions",
                                          "-fno-rtti",
                                          "-fno-strict-aliasing",
                                          "-fno-asynchronous-unwind-tables",
                                          "-I",
                                          EMULATE_DIR,
                                          "-I",
                                          folder,
                                          "-o",
                                          object,
                                          source};
    posix_spawn_file_actions_t files;
    pid_t child;
    int n = 0, status = -1;

    path_in(source, folder, "main.cpp");
    path_in(object, folder, "kernel.so");
    path_in(log, folder, "log.txt");
    while (arguments[n]) n++;
    for (int i = 0; i < n_options && n + 1 < MAX_OPTIONS; i++)
        if (strncmp(options[i], "-D", 2) == 0) arguments[n++] = options[i];
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (!spawn_one(&child, &files, arguments))
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    posix_spawn_file_actions_destroy(&files);
    return status;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int n_options, const char *const *options)
{
    char folder[SCRATCH_BYTES];
    int status;

    if (!mkdtemp(scratch_name(folder, "emulate"))) return FAILED;
    status = write_files(p, folder) ? run_compiler(folder, n_options, options) : -1;
    p->log = read_all(folder, "log.txt");
    if (status == 0) p->object = read_all(folder, "kernel.so");
    remove_files(p, folder);
    return p->object.size ? 0 : status < 0 ? FAILED : NVRTC_ERROR_COMPILATION;
}

EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, size_t *size)
{
    *size = p->log.size + 1;
    return 0;
}
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char *log)
{
    memcpy(log, p->log.data ? p->log.data : "", p->log.size + 1);
    return 0;
}
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, size_t *size)
{
    *size = p->object.size;
    return 0;
}
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char *cubin)
{
    memcpy(cubin, p->object.data, p->object.size);
    return 0;
}
