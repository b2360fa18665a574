/* check_random.h - random graphs (random_chain.h) under the planner's plan and random ones, by check.h. */
#ifndef TEST_CHECK_RANDOM_H
#define TEST_CHECK_RANDOM_H

#include "check.h"
#include "random_chain.h"

/* Every value in one dtype, of 16 bits in two of three graphs parameters too. Plans at random are, for every other
 * graph, in tf32. */
bool check_random(const gpu *u, cvy_dtype dtype, flavour f, uint64_t seed, int kinds);

#endif
