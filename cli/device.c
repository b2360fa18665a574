/* device.c - the host as a device, and the choice of one. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "cli.h"
#include "../src/cpu/cpuinfo.h"
#include "../src/cpu/thread.h"

enum { HUGE_PAGE = 1 << 21 };

void *host_alloc(size_t bytes)
{
    const bool huge = bytes >= 2 * (size_t)HUGE_PAGE;
    const size_t align = huge ? HUGE_PAGE : CVY_ALIGN;
    void *memory;
    if (bytes > SIZE_MAX - align) return NULL;
    memory = aligned_alloc(align, (bytes + align) / align * align); /* never of 0 bytes */
    if (memory && huge) madvise(memory, bytes, MADV_HUGEPAGE);      /* a hint: its failure changes nothing */
    return memory;
}

static double started;

static cvy_status host_start(void)
{
    started = now();
    return CVY_OK;
}

static cvy_status host_stop(double *seconds)
{
    *seconds = now() - started;
    return CVY_OK;
}

static void host_name(char *name, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    snprintf(name, size, "unknown CPU");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value) continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(name, size, "%s", value + 2);
        break;
    }
    if (file) fclose(file);
}

static void host_describe(platform *p, bool measure)
{
    cpu_isa isa;
    machine m;
    host_name(p->name, sizeof p->name);
    p->source = "measured";
    if (!measure || cvyi_isa_choose(&isa)) return;
    cvyi_machine_measure(isa, &m);
    if (!m.measured) p->source = "estimated";
    p->fma_gflops = m.fma_gflops * (p->threads < m.threads ? p->threads : m.threads);
    p->gbps = m.mem_gbps;
}

static const device host = {
    .alloc = host_alloc, .free = free, .time_start = host_start, .time_stop = host_stop, .describe = host_describe};

cvy_status device_open(cvy_device id, int ordinal, const device **out)
{
    if (id == CVY_CUDA) return gpu_open(ordinal, out);
    *out = &host;
    return CVY_OK;
}

const char *device_name(cvy_device id)
{
    static const char *const names[] = {"auto", "ref", "cpu", "cuda"};
    return names[id];
}

void platform_describe(platform *p, const job *j, const options *o, bool measure)
{
    memset(p, 0, sizeof *p);
    p->threads = cvy_plan_device(j->plan) == CVY_CPU ? cvyi_threads_choose(o->plan.threads) : 1;
    j->device->describe(p, measure);
}
