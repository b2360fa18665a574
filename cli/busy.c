/* busy.c - how much of the machine other processes used during a measurement.
 *
 * /proc/stat counts what every processor did since the system began, in ticks of a hundredth of a second; the
 * process knows its own share, and the rest is that of others. Only processors that this process may use are
 * counted. */
#include <math.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>
#include "cli.h"

static const double busy_share = 0.2,
                    shortest = 0.2; /* of the processors; seconds, below which ticks are too coarse */

/* Seconds for which the processors of the mask were not idle; NAN if the system does not say. */
static double busy_seconds(const cpu_set_t *mask)
{
    FILE *file = fopen("/proc/stat", "re");
    double ticks = 0;
    char line[512];
    bool any = false;

    while (file && fgets(line, sizeof line, file)) {
        unsigned long long user, nice, system, idle, wait, irq, soft, steal;
        int cpu;
        if (sscanf(line, "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &user, &nice, &system, &idle, &wait,
                   &irq, &soft, &steal) != 9)
            continue;
        if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, mask)) continue;
        ticks += (double)(user + nice + system + irq + soft + steal);
        any = true;
    }
    if (file) fclose(file);
    return any ? ticks / (double)sysconf(_SC_CLK_TCK) : NAN;
}

static double own_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

void load_start(load *l)
{
    cpu_set_t mask;
    *l = (load){.busy = NAN, .own = own_seconds(), .start = now()};
    if (sched_getaffinity(0, sizeof mask, &mask)) return;
    l->processors = CPU_COUNT(&mask);
    l->busy = busy_seconds(&mask);
}

void load_stop(load *l)
{
    const double wall = now() - l->start;
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask)) return;
    l->others = (busy_seconds(&mask) - l->busy - (own_seconds() - l->own)) / wall;
    if (l->others < 0) l->others = 0; /* ticks are coarse */
    l->is_busy = wall >= shortest && l->others > busy_share * l->processors;
}
