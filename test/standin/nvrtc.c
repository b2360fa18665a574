/* nvrtc.c - a libnvrtc that compiles nothing; see standin.h. Its machine code is a function of every text and
 * option, so that a wrong or damaged cache entry shows; a text that says BAD_SOURCE does not compile. */
#include <stdlib.h>
#include <string.h>
#include "../../src/cuda/api.h"
#include "standin.h"

#define EXPORT __attribute__((visibility("default")))
enum { CUBIN_BYTES = 4000, FAKE_ERROR = 11 };

struct nvrtcProgram_st {
    uint64_t digest;
    int bad;
};

static standin state = {.fail_at = -1};

EXPORT standin *standin_state(void)
{
    return &state;
}

static int fails(const char *call, int frees)
{
    if (atomic_fetch_add(&state.calls, 1) != state.fail_at) return 0;
    state.failed = call;
    state.freed = frees;
    return 1;
}
#define STEP(name)                                                                                                 \
    if (fails(#name, 0)) return FAKE_ERROR

static void mix(struct nvrtcProgram_st *p, const char *string)
{
    for (; *string; string++) p->digest = (p->digest ^ (unsigned char)*string) * UINT64_C(0x100000001b3);
    p->digest = p->digest * 31 + 7;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result)
{
    return result == FAKE_ERROR ? "made to fail" : "some error";
}
EXPORT nvrtcResult nvrtcVersion(int *major, int *minor)
{
    STEP(nvrtcVersion);
    *major = 13;
    *minor = 0;
    return 0;
}
static const int known_archs[] = {80, 86, 89, 90, 100, 120};
enum { KNOWN_ARCHS = sizeof known_archs / sizeof *known_archs };

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count)
{
    STEP(nvrtcGetNumSupportedArchs);
    *count = KNOWN_ARCHS;
    return 0;
}
EXPORT nvrtcResult nvrtcGetSupportedArchs(int *archs)
{
    STEP(nvrtcGetSupportedArchs);
    memcpy(archs, known_archs, sizeof known_archs);
    return 0;
}
EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int n_headers,
                                      const char *const *headers, const char *const *header_names)
{
    STEP(nvrtcCreateProgram);
    struct nvrtcProgram_st *p = calloc(1, sizeof *p);
    mix(p, source);
    mix(p, name);
    p->bad = strstr(source, "BAD_SOURCE") != NULL;
    for (int i = 0; i < n_headers; i++) {
        mix(p, headers[i]);
        mix(p, header_names[i]);
        p->bad |= strstr(headers[i], "BAD_SOURCE") != NULL;
    }
    state.live++;
    *program = p;
    return 0;
}
EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program)
{
    state.live--;
    free(*program);
    *program = NULL;
    return fails("nvrtcDestroyProgram", 1) ? FAKE_ERROR : 0;
}
EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int n_options, const char *const *options)
{
    STEP(nvrtcCompileProgram);
    for (int i = 0; i < n_options; i++) mix(program, options[i]);
    state.compiles++;
    return program->bad ? NVRTC_ERROR_COMPILATION : 0;
}
static const char *log_of(nvrtcProgram program)
{
    return program->bad ? "warning: something else\nepilogue.cuh(4): error: BAD_SOURCE is undefined\n" : "";
}
EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes)
{
    STEP(nvrtcGetProgramLogSize);
    *bytes = strlen(log_of(program)) + 1;
    return 0;
}
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log)
{
    STEP(nvrtcGetProgramLog);
    strcpy(log, log_of(program));
    return 0;
}
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes)
{
    (void)program;
    STEP(nvrtcGetCUBINSize);
    *bytes = CUBIN_BYTES;
    return 0;
}
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin)
{
    STEP(nvrtcGetCUBIN);
    uint64_t x = program->digest;
    for (int i = 0; i < CUBIN_BYTES; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
        cubin[i] = (char)(x >> 56);
    }
    return 0;
}
