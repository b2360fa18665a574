/* conv_depthwise.c - convolutions whose groups have one input channel. */
#include "../conv.h"
#include "../simd.h"
void ISA(cvyi_conv_direct)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_depthwise)(const conv_job *job, int64_t unit, void *scratch);
void ISA(cvyi_conv_depthwise)(const conv_job *job, int64_t unit, void *scratch)
{
    ISA(cvyi_conv_direct)(job, unit, scratch);
}
