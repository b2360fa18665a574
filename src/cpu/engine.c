/* engine.c - the CPU engine. */
#include "../plan/plan.h"

static cvy_status open_cpu(cvy_plan *p)
{
    (void)p;
    return cvyi_fail(CVY_NO_DEVICE, "the cpu engine is not built yet");
}
static void close_cpu(cvy_plan *p)
{
    (void)p;
}
const engine cvyi_engine_cpu = {.device = CVY_CPU, .name = "cpu", .open = open_cpu, .close = close_cpu};
