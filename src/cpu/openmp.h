/* openmp.h - the OpenMP runtime of the process, if there is one.
 *
 * PyTorch runs its operators on the team of an OpenMP runtime, whose threads spin for a while after each. A second
 * pool would find the cores busy. So Convoy's calls run on that team, for any caller. The entry points are
 * those that code compiled by gcc calls; libgomp, LLVM's libomp and Intel's libiomp5 have them. Convoy neither
 * loads nor links a runtime. */
#ifndef CVYI_OPENMP_H
#define CVYI_OPENMP_H

#include "../util/util.h"

typedef struct openmp {
    void (*parallel)(void (*fn)(void *), void *data, unsigned threads, unsigned flags); /* GOMP_parallel */
    int (*max_threads)(void);                                                           /* omp_get_... */
    int (*num_threads)(void);
    int (*thread_num)(void);
    int (*in_parallel)(void);
} openmp;

/* Reads CVY_POOL; CVY_INVALID for an unknown word. Calls that begin after it follow it. */
cvy_status cvyi_openmp_choose(void);

/* The runtime to use; NULL: none is loaded, CVY_POOL says not to, or this is the child of a fork, where the team is
 * gone and libgomp would wait for it forever. Once there is one it stays; until then it is looked for again
 * whenever the process has loaded another library. */
const openmp *cvyi_openmp(void);

#endif
