/* thread.h - threads that live as long as the process: the OpenMP team if a runtime is loaded, else a pool.
 *
 * Items of one call are claimed one by one, in order, by any free thread; results must not depend on which
 * thread ran an item, nor on how many there were. Nothing here allocates once the workers exist. A call inside a
 * call, or inside an OpenMP region, and a call while another thread's call has the pool, runs on its own thread
 * only: correct, only slower, and never a deadlock. (Every caller has its own team, so teams are never taken.)
 *
 * A call gets the team if it requests no more threads than the team has: OMP_NUM_THREADS, torch.set_num_threads. */
#ifndef CVYI_THREAD_H
#define CVYI_THREAD_H

#include "../util/util.h"

enum { CVYI_MAX_THREADS = 256 }; /* worker numbers are below this */

/* CPUs this thread may run on: its affinity, limited by the cgroup's CPU quota. At least 1. (cpuinfo.c) */
int cvyi_threads_available(void);

/* `asked` if positive, else CVY_THREADS, else cvyi_threads_available(); between 1 and CVYI_MAX_THREADS. */
int cvyi_threads_choose(int asked);

/* Makes workers for calls of up to `threads` threads, so that these calls need not; with a team there is nothing to
 * make. Fails if the system refuses; calls then run on the threads there are. Reads CVY_POOL. */
cvy_status cvyi_threads_reserve(int threads);

/* Runs fn(ctx, item, worker) for every item in [0, items) on up to `threads` threads, the caller among them as
 * worker 0; workers are below `threads`. Returns when all items are done. */
void cvyi_parallel(int threads, int64_t items, void (*fn)(void *ctx, int64_t item, int worker), void *ctx);

/* Runs fn(ctx, worker, team) once on each worker of a team of up to `threads` threads (cvyi_team_size tells), all
 * at the same time, so that fn may call cvyi_team_barrier. */
typedef struct cpu_team cpu_team;
void cvyi_team(int threads, void (*fn)(void *ctx, int worker, cpu_team *team), void *ctx);
int cvyi_team_size(const cpu_team *team);

/* Waits until every worker of the team is here; what they wrote before is seen by all after it. */
void cvyi_team_barrier(cpu_team *team);

/* Restarts a count of items for the whole team: all workers call it, then claim until cvyi_team_claim is negative.
 * It is a barrier. */
void cvyi_team_begin(cpu_team *team, int worker, int64_t items);
int64_t cvyi_team_claim(cpu_team *team);

#endif
