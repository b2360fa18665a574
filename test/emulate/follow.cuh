// follow.cuh - launches come one after the other here.
#pragma once

static inline void cvy_follow()
{
}
