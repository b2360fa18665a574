/* check_random.h - random graphs (random_chain.h) under the planner's plan and random ones, by check.h. */
#ifndef TEST_CHECK_RANDOM_H
#define TEST_CHECK_RANDOM_H

#include "check.h"
#include "random_chain.h"

/* What a report calls a graph: its text, and what makes it again. Freed by the caller. */
char *random_title(const cvy_graph *g, flavour f, uint64_t seed);

/* Plans at random are, for every other graph, in tf32. */
bool check_random(const gpu *u, flavour f, uint64_t seed, int kinds);

#endif
