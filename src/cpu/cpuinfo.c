/* cpuinfo.c - instruction sets, caches, cores, and their measured speed. */
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cpuinfo.h"
#include "thread.h"

/* ---- instruction sets ---- */

static const char *const isa_names[CPU_ISA_COUNT] = {"portable", "neon", "avx2", "avx512"};
static const cpu_probe_kernels *const probes[CPU_ISA_COUNT] = CPU_KERNELS(cvyi_probe);

const char *cvyi_isa_name(cpu_isa isa)
{
    return isa_names[isa];
}

#if defined(__x86_64__)
/* A feature that the test of older compilers does not know. */
static bool has_f16c(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* The compiler's own test also asks (xgetbv) whether the operating system keeps the wide registers. */
bool cvyi_isa_supported(cpu_isa isa)
{
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    return isa == CPU_PORTABLE || (isa == CPU_AVX2 && avx2) || (isa == CPU_AVX512 && avx512);
#elif defined(__aarch64__) /* vectors are part of the architecture */
    return isa == CPU_PORTABLE || isa == CPU_NEON;
#else
    return isa == CPU_PORTABLE;
#endif
}

cvy_status cvyi_isa_choose(cpu_isa *out)
{
    const char *word = cvyi_env(ENV_ISA);
    int isa = CPU_ISA_COUNT - 1;
    while (isa >= 0 && (word ? strcmp(word, isa_names[isa]) != 0 : !cvyi_isa_supported((cpu_isa)isa))) isa--;
    if (isa < 0) return cvyi_fail(CVY_INVALID, "CVY_ISA is '%s', expected portable, neon, avx2 or avx512", word);
    if (!cvyi_isa_supported((cpu_isa)isa)) {
        return cvyi_fail(CVY_UNSUPPORTED, "CVY_ISA is '%s', which this CPU does not have", word);
    }
    *out = (cpu_isa)isa;
    return CVY_OK;
}

/* ---- small files of the system ---- */

/* The beginning of <dir><name>; false if there is nothing to read. */
static bool read_file(const char *dir, const char *name, char *buffer, size_t capacity)
{
    text path = {0};
    FILE *file = NULL;
    size_t len = 0;
    cvyi_text_add(&path, "%s%s", dir, name);
    if (!path.failed) file = fopen(path.data, "re");
    cvyi_text_free(&path);
    if (!file) return false;
    len = fread(buffer, 1, capacity - 1, file);
    fclose(file);
    buffer[len] = 0;
    return len > 0;
}

/* ---- CPUs ---- */

static int cpus_by_affinity(void)
{
    cpu_set_t *set = NULL;
    int count = 0;
    /* The call fails if there are more CPUs than the set has room for: try a larger one. */
    for (int room = CPU_SETSIZE; !count && room <= 64 * CPU_SETSIZE; room *= 8) {
        const size_t bytes = CPU_ALLOC_SIZE(room);
        set = cvyi_alloc(1, bytes);
        if (set && sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
        cvyi_free(set);
    }
    return count > 0 ? count : 1;
}

/* The quota of one cgroup in CPUs, rounded up; 0: no limit. Version 2 writes "quota period" or "max period". */
static int cpus_by_quota(const char *dir, bool v2)
{
    char content[64];
    double quota = 0, period = 0;
    if (!read_file(dir, v2 ? "/cpu.max" : "/cpu.cfs_quota_us", content, sizeof content)) return 0;
    if (v2) {
        if (sscanf(content, "%lf %lf", &quota, &period) != 2) return 0;
    } else {
        quota = atof(content); /* -1: none */
        period = read_file(dir, "/cpu.cfs_period_us", content, sizeof content) ? atof(content) : 0;
    }
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

/* The smaller of two limits, 0 being none. */
static int tighter(int a, int b)
{
    return a > 0 && (b <= 0 || a < b) ? a : b;
}

/* The smallest quota of a cgroup and of its parents. */
static int tightest_quota(const char *mount, const char *path, bool v2)
{
    text dir = {0};
    int tightest = 0;
    cvyi_text_add(&dir, "%s%s", mount, path);
    while (!dir.failed) {
        tightest = tighter(tightest, cpus_by_quota(dir.data, v2));
        if (strlen(dir.data) <= strlen(mount)) break;
        *strrchr(dir.data, '/') = 0;
    }
    cvyi_text_free(&dir);
    return tightest;
}

/* Whether "cpu" is in a list such as "cpu,cpuacct". */
static bool names_cpu(const char *list)
{
    for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL) {
        if (!strncmp(list, "cpu", 3) && (list[3] == 0 || list[3] == ',')) return true;
    }
    return false;
}

/* Lines of /proc/self/cgroup are "number:controllers:path", without controllers in version 2. */
static int cpus_by_cgroup(void)
{
    char lines[4096];
    int tightest = 0;
    if (!read_file("/proc/self/", "cgroup", lines, sizeof lines)) return 0;
    for (char *line = lines, *end; *line; line = end) {
        char *names, *path;
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        names = strchr(line, ':');
        path = names ? strchr(++names, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (!strcmp(path, "/")) path++;
        if (!*names)
            tightest = tighter(tightest, tightest_quota("/sys/fs/cgroup", path, true));
        else if (names_cpu(names))
            tightest = tighter(tightest, tightest_quota("/sys/fs/cgroup/cpu", path, false));
    }
    return tightest;
}

int cvyi_threads_available(void)
{
    const int cpus = cpus_by_affinity(), quota = cpus_by_cgroup();
    return quota > 0 && quota < cpus ? quota : cpus;
}

/* ---- caches ---- */

/* Bytes of the data or unified cache of a level, as CPU 0 has it; `otherwise` if the system does not say. */
static int64_t cache_bytes(int level, int64_t otherwise)
{
    for (int index = 0; index < 8; index++) {
        char dir[64], content[32], unit = 0;
        long long size = 0;
        snprintf(dir, sizeof dir, "/sys/devices/system/cpu/cpu0/cache/index%d", index);
        if (!read_file(dir, "/level", content, sizeof content) || atoi(content) != level) continue;
        if (!read_file(dir, "/type", content, sizeof content) || content[0] == 'I') continue;
        if (!read_file(dir, "/size", content, sizeof content)) continue;
        if (sscanf(content, "%lld%c", &size, &unit) < 1 || size <= 0) continue;
        return size << (unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0);
    }
    return otherwise;
}

/* ---- speed ---- */

/* One core of a recent server at 3 GHz: 4-lane multiply and add, two to four 4-lane FMAs (AArch64),
 * two 8-lane, one to two 16-lane FMAs per cycle. */
static const double estimated_gflops[CPU_ISA_COUNT] = {24, 60, 90, 120};

static void estimate_rates(machine *out)
{
    out->fma_gflops = estimated_gflops[out->isa];
    /* Two cores nearly fill a memory channel or two of a shared server; more cores reach a few channels more. */
    out->mem_gbps = out->threads == 1 ? 14 : out->threads < 8 ? 28 : 28 + 4.0 * (out->threads - 8);
    out->l3_gbps = 40.0 * out->threads;
}

/* Sizes from the system, rates as estimates for the instruction set. */
static void estimate(cpu_isa isa, machine *out)
{
    *out = (machine){.threads = cvyi_threads_available(),
                     .isa = isa,
                     .l1 = cache_bytes(1, 32 << 10),
                     .l2 = cache_bytes(2, 512 << 10)};
    out->l3 = cache_bytes(3, out->l2);
    estimate_rates(out);
}

/* "avx512,16": an instruction set whose kernels are built, and cores. Caches are those of a typical server. */
static cvy_status machine_elsewhere(const char *words, machine *out)
{
    int isa = CPU_ISA_COUNT - 1, threads = 0, end = 0;

    while (isa >= 0 && strncmp(words, isa_names[isa], strlen(isa_names[isa])) != 0) isa--;
    if (isa >= 0) sscanf(words + strlen(isa_names[isa]), ",%d%n", &threads, &end);
    if (isa < 0 || !end || words[strlen(isa_names[isa]) + (size_t)end] || threads < 1 || threads > CVYI_MAX_THREADS)
        return cvyi_fail(CVY_INVALID,
                         "CVY_MACHINE is '%s', expected portable, neon, avx2 or avx512, a comma, and 1 to %d cores",
                         words, CVYI_MAX_THREADS);
    if (!probes[isa])
        return cvyi_fail(CVY_UNSUPPORTED, "CVY_MACHINE is '%s', for which no kernels are built", words);
    *out = (machine){.threads = threads, .isa = (cpu_isa)isa, .l1 = 32 << 10, .l2 = 2 << 20, .elsewhere = true};
    out->l3 = threads * (INT64_C(2) << 20);
    estimate_rates(out);
    return CVY_OK;
}

cvy_status cvyi_machine_choose(machine *out)
{
    const char *words = cvyi_env(ENV_MACHINE);
    cpu_isa isa;
    cvy_status st = CVY_OK;

    if (words) return machine_elsewhere(words, out);
    TRY(cvyi_isa_choose(&isa));
    estimate(isa, out);
fail:
    return st;
}

typedef struct probe_work {
    const cpu_probe_kernels *probe;
    int64_t rounds; /* FMA rounds per unit; 0: read */
    const float *data;
    int64_t n;                    /* floats per unit, when reading */
    float sink[CVYI_MAX_THREADS]; /* keeps the results alive */
} probe_work;

static void probe_unit(void *ctx, int64_t unit, int worker)
{
    probe_work *w = ctx;
    w->sink[worker] += w->rounds ? w->probe->fma(w->rounds) : w->probe->read(w->data + unit * w->n, w->n);
}

/* The shortest of `repeats` runs of a job, in seconds, because disturbances only make a run longer. */
static double best_of(int repeats, int threads, int64_t units, probe_work *w)
{
    double best = 1e9;
    for (int i = 0; i < repeats; i++) {
        const double start = cvyi_now();
        double took;
        cvyi_parallel(threads, units, probe_unit, w);
        took = cvyi_now() - start;
        if (took < best) best = took;
    }
    return best;
}

enum { FMA_ROUNDS = 40000, READ_FLOATS = 1 << 15 }; /* 0.1 ms of FMA; units of 128 KiB */

/* On one thread, because other processes may be using the other cores at this moment. */
static void measure_fma(probe_work *w, machine *m)
{
    w->rounds = FMA_ROUNDS;
    m->fma_gflops = 1e-9 * (double)(FMA_ROUNDS * w->probe->flops_per_round) / best_of(12, 1, 1, w);
    w->rounds = 0;
}

static double read_gbps(probe_work *w, int threads, int64_t bytes, int repeats)
{
    const int64_t units = bytes / (int64_t)(READ_FLOATS * sizeof(float));
    w->n = READ_FLOATS;
    return 1e-9 * (double)bytes / best_of(repeats, threads, units, w);
}

/* Memory: a buffer 1.5 times as large as the last cache, read in a circle, so nothing useful is left in that
 * cache; at most 64 MiB (what fits into the time), else the estimate stays. The cache: a quarter of it, but more
 * than the inner caches hold. */
static void measure_reads(probe_work *w, machine *m)
{
    const int64_t most = INT64_C(64) << 20, want = cvyi_max64(m->l3 + m->l3 / 2, most / 2);
    const int64_t resident = cvyi_min64(m->l3 / 4, most / 4);
    float *data = cvyi_alloc_aligned((size_t)cvyi_min64(want, most));
    if (!data) return;
    w->data = data;
    if (want <= most) m->mem_gbps = read_gbps(w, m->threads, want, 2);
    if (resident > m->threads * m->l2) m->l3_gbps = read_gbps(w, m->threads, resident, 4);
    cvyi_free(data);
}

void cvyi_machine_measure(cpu_isa isa, machine *out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static machine known[CPU_ISA_COUNT];
    pthread_mutex_lock(&lock);
    if (!known[isa].measured) {
        probe_work work = {.probe = probes[isa]};
        estimate(isa, &known[isa]);
        cvyi_threads_reserve(known[isa].threads); /* if there are fewer, measures with those */
        measure_reads(&work, &known[isa]);
        measure_fma(&work, &known[isa]);
        known[isa].measured = true;
    }
    *out = known[isa];
    pthread_mutex_unlock(&lock);
}
