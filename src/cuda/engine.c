/* engine.c - the CUDA engine. */
#include "../plan/plan.h"

static cvy_status open_cuda(cvy_plan *p)
{
    (void)p;
    return cvyi_fail(CVY_NO_DEVICE, "the cuda engine is not built yet");
}
static void close_cuda(cvy_plan *p)
{
    (void)p;
}
const engine cvyi_engine_cuda = {.device = CVY_CUDA, .name = "cuda", .open = open_cuda, .close = close_cuda};
