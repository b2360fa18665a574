/* jit.c - compiles one kernel, or takes it from the cache.
 *
 * The cache's key is everything the result depends on: format, engine version, NVRTC version, architecture, options
 * and all source texts. A payload is the CUBIN. CVY_DUMP=DIR leaves DIR/<entry>.<arch>/ with the sources, options,
 * log and cubin of each kernel, and nvcc compiles that folder unchanged. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "driver.h"
#include "jit.h"

enum { MAX_OPTIONS = 64, MAX_FILES = 64, FIXED_OPTIONS = 5 };

/* One compilation. */
typedef struct job {
    const jit_request *request;
    const nvrtc_api *rtc;
    jit_file files[MAX_FILES]; /* [0] is compiled, the others are headers */
    int n_files;
    const char *options[MAX_OPTIONS];
    int n_options;
    char arch[16], arch_option[40], name_option[160];
    text log;
} job;

static cvy_status collect_files(job *j)
{
    const jit_request *r = j->request;

    j->n_files = 1;
    for (const jit_file *f = cvyi_cuda_files; f->name; f++) {
        const size_t len = strlen(f->name);
        const bool header = len > 4 && strcmp(f->name + len - 4, ".cuh") == 0;
        if (strcmp(f->name, r->source) == 0) j->files[0] = *f;
        if (!header) continue;
        if (j->n_files == MAX_FILES) return cvyi_fail(CVY_FAILED, "jit: more than %d headers", MAX_FILES - 1);
        j->files[j->n_files] = *f;
        if (r->epilogue && strcmp(f->name, "epilogue.cuh") == 0) j->files[j->n_files].data = r->epilogue;
        j->n_files++;
    }
    if (!j->files[0].name) return cvyi_fail(CVY_FAILED, "jit: there is no kernel source %s", r->source);
    return CVY_OK;
}

static cvy_status collect_options(job *j)
{
    const jit_request *r = j->request;
    const char *more = cvyi_env(ENV_NVRTC_OPTION);

    if (r->n_options > MAX_OPTIONS - FIXED_OPTIONS)
        return cvyi_fail(CVY_FAILED, "jit: %s has %d options, at most %d fit", r->entry, r->n_options,
                         MAX_OPTIONS - FIXED_OPTIONS);
    snprintf(j->arch, sizeof j->arch, "sm_%d%d%s", r->major, r->minor, r->arch_specific ? "a" : "");
    snprintf(j->arch_option, sizeof j->arch_option, "--gpu-architecture=%s", j->arch);
    snprintf(j->name_option, sizeof j->name_option, "-DKERNEL_NAME=%s", r->entry);
    j->options[j->n_options++] = j->arch_option;
    j->options[j->n_options++] = "--std=c++17";
    j->options[j->n_options++] = "--generate-line-info";
    j->options[j->n_options++] = j->name_option;
    for (int i = 0; i < r->n_options; i++) j->options[j->n_options++] = r->options[i];
    if (more) j->options[j->n_options++] = more;
    return CVY_OK;
}

/* With the NUL after it, so that no two lists of texts run together into the same bytes. */
static void add_text(sha256 *s, const char *string)
{
    cvyi_sha256_add(s, string, strlen(string) + 1);
}

/* The digest of all embedded texts, 240 KB, which need not be read again for every kernel. */
static unsigned char embedded_digest[SHA256_BYTES];

static void digest_embedded(void)
{
    sha256 s;

    cvyi_sha256_start(&s);
    for (const jit_file *f = cvyi_cuda_files; f->name; f++) {
        add_text(&s, f->name);
        add_text(&s, f->data);
    }
    cvyi_sha256_end(&s, embedded_digest);
}

static void make_key(const job *j, cache_key *key)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const char *epilogue = j->request->epilogue;
    sha256 s;
    char head[96];

    pthread_once(&once, digest_embedded);
    cvyi_sha256_start(&s);
    snprintf(head, sizeof head, "cubin 2, convoy %s, nvrtc %d.%d, %d options%s", CVY_VERSION, j->rtc->major,
             j->rtc->minor, j->n_options, epilogue ? ", an epilogue" : "");
    add_text(&s, head);
    for (int i = 0; i < j->n_options; i++) add_text(&s, j->options[i]);
    add_text(&s, j->files[0].name);
    if (epilogue) add_text(&s, epilogue);
    cvyi_sha256_add(&s, embedded_digest, sizeof embedded_digest);
    cvyi_sha256_end(&s, key->digest);
}

static void dump_file(const char *dir, const char *name, const void *data, size_t bytes)
{
    char path[1400];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "w");
    if (!f || fwrite(data, 1, bytes, f) != bytes) cvyi_log(1, "dump: %s: %s", path, strerror(errno));
    if (f) fclose(f);
}

static void dump(const job *j, const jit_code *code)
{
    const char *root = cvyi_env(ENV_DUMP);
    char dir[1200];
    text options = {0};

    if (!root) return;
    snprintf(dir, sizeof dir, "%s/%s.%s", root, j->request->entry, j->arch);
    mkdir(root, 0777);
    mkdir(dir, 0777);
    for (int i = 0; i < j->n_files; i++)
        dump_file(dir, j->files[i].name, j->files[i].data, strlen(j->files[i].data));
    for (int i = 0; i < j->n_options; i++) cvyi_text_add(&options, "%s\n", j->options[i]);
    if (options.data) dump_file(dir, "options.txt", options.data, options.len);
    if (j->log.data) dump_file(dir, "log.txt", j->log.data, j->log.len);
    if (code->cubin) dump_file(dir, "kernel.cubin", code->cubin, code->size);
    cvyi_text_free(&options);
}

static void log_source(const job *j)
{
    text options = {0};

    if (!cvyi_logs(5)) return;
    for (int i = 0; i < j->n_options; i++) cvyi_text_add(&options, " %s", j->options[i]);
    if (!options.failed)
        cvyi_log(5, "%s: %s%s\n%s", j->request->entry, j->files[0].name, options.data ? options.data : "",
                 j->request->epilogue ? j->request->epilogue : "(no epilogue)");
    cvyi_text_free(&options);
}

static cvy_status check_arch(const job *j)
{
    const int wanted = j->request->major * 10 + j->request->minor;
    int archs[64], count = 0;
    cvy_status st;

    TRY(RTC(j->rtc, nvrtcGetNumSupportedArchs, &count));
    if (count > COUNT_OF(archs)) return CVY_OK; /* it will speak for itself */
    TRY(RTC(j->rtc, nvrtcGetSupportedArchs, archs));
    for (int i = 0; i < count; i++)
        if (archs[i] == wanted) return CVY_OK;
    return cvyi_fail(CVY_NO_DEVICE, "nvrtc: version %d.%d does not compile for %s (it knows sm_%d to sm_%d)",
                     j->rtc->major, j->rtc->minor, j->arch, count ? archs[0] : 0, count ? archs[count - 1] : 0);
fail:
    return st;
}

static cvy_status fetch_log(job *j, nvrtcProgram program)
{
    cvy_status st;
    size_t bytes = 0;
    char *log = NULL;

    TRY(RTC(j->rtc, nvrtcGetProgramLogSize, program, &bytes));
    log = cvyi_alloc(bytes + 1, 1);
    if (!log) return CVY_NO_MEMORY;
    TRY(RTC(j->rtc, nvrtcGetProgramLog, program, log));
    if (log[0]) cvyi_text_add(&j->log, "%s", log);
    if (j->log.len) cvyi_log(1, "%s (%s):\n%s", j->request->entry, j->arch, j->log.data);
fail:
    cvyi_free(log);
    return st;
}

static cvy_status compile_failed(const job *j)
{
    const char *first = j->log.data ? strstr(j->log.data, "error") : NULL;

    while (first && first > j->log.data && first[-1] != '\n')
        first--; /* to the start of the line, which begins with the file's name */
    return cvyi_fail(CVY_FAILED, "nvrtc: nvrtcCompileProgram: %s does not compile for %s:\n%.700s",
                     j->files[0].name, j->arch,
                     first         ? first
                     : j->log.data ? j->log.data
                                   : "(no log)");
}

static cvy_status compile(job *j, jit_code *out)
{
    const nvrtc_api *rtc = j->rtc;
    const char *headers[MAX_FILES], *names[MAX_FILES];
    nvrtcProgram program = NULL;
    nvrtcResult result;
    cvy_status st;

    TRY(check_arch(j));
    for (int i = 1; i < j->n_files; i++) headers[i - 1] = j->files[i].data, names[i - 1] = j->files[i].name;
    TRY(RTC(rtc, nvrtcCreateProgram, &program, j->files[0].data, j->files[0].name, j->n_files - 1, headers, names));
    result = rtc->nvrtcCompileProgram(program, j->n_options, j->options);
    TRY(fetch_log(j, program));
    if (result == NVRTC_ERROR_COMPILATION) {
        st = compile_failed(j);
        goto fail;
    }
    TRY(cvyi_nvrtc_check(rtc, result, "nvrtcCompileProgram"));
    TRY(RTC(rtc, nvrtcGetCUBINSize, program, &out->size));
    out->cubin = cvyi_alloc(out->size, 1);
    if (!out->cubin) {
        st = CVY_NO_MEMORY;
        goto fail;
    }
    TRY(RTC(rtc, nvrtcGetCUBIN, program, out->cubin));
fail:
    if (program) rtc->nvrtcDestroyProgram(&program);
    if (st != CVY_OK) cvyi_jit_free(out);
    return st;
}

static cvy_status begin(const jit_request *request, job *j)
{
    cvy_status st;

    j->request = request;
    TRY(cvyi_cuda_nvrtc(&j->rtc));
    TRY(collect_files(j));
    TRY(collect_options(j));
fail:
    return st;
}

cvy_status cvyi_jit_key(const jit_request *request, cache_key *out)
{
    cvy_status st;
    job j = {0};

    TRY(begin(request, &j));
    make_key(&j, out);
fail:
    return st;
}

cvy_status cvyi_jit_compile(const jit_request *request, jit_code *out)
{
    cvy_status st;
    job j = {0};
    cache_key key;

    memset(out, 0, sizeof *out);
    TRY(begin(request, &j));
    make_key(&j, &key);
    out->cubin = cvyi_cache_load(&key, &out->size);
    out->cached = out->cubin != NULL;
    if (!out->cached) {
        st = compile(&j, out);
        if (st == CVY_OK) cvyi_cache_store(&key, out->cubin, out->size);
    }
    dump(&j, out);
    log_source(&j);
    cvyi_log(4, "%s (%s): %zu bytes%s", request->entry, j.arch, out->size, out->cached ? ", from the cache" : "");
fail:
    cvyi_text_free(&j.log);
    return st;
}

void cvyi_jit_free(jit_code *code)
{
    cvyi_free(code->cubin);
    memset(code, 0, sizeof *code);
}
