/* random_graph.h - random graphs through the C calls: any operator on any value, attributes at random, names that
 * collide with automatic ones, parameters declared long before they are read or never read. Most calls are refused
 * for their shapes; what is accepted makes the graph. */
#ifndef TEST_RANDOM_GRAPH_H
#define TEST_RANDOM_GRAPH_H

#include "../unit/unit.h"

/* steps: how many calls are tried; typed: not all of float32. */
cvy_graph *random_graph(uint64_t *seed, int steps, bool typed);

#endif
