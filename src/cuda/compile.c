/* compile.c - code for the steps of any number of plans at once, on as many threads as there are cores. A kernel
 * that several steps need is compiled once; one that the device has loaded already is not compiled. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "compile.h"
#include "modules.h"

/* One code of a step. */
typedef struct job {
    const cuda_state *state;
    cuda_step *step;
    int which;
    int like; /* the first job that needs the same code, which holds it */
    bool wanted;
    cache_key key;
    jit_code code;
} job;

/* The jobs of all plans, taken by a few threads. */
typedef struct workshop {
    job *jobs;
    int n_jobs;
    int next, wanted, done;
    cvy_status status; /* of the first that failed, with its message */
    char message[1024];
    double since; /* seconds; when a progress line may appear, and whether one did */
    bool shows, shown;
    pthread_mutex_t lock;
} workshop;

const char *cvyi_cuda_entry(const cuda_step *s, int which, char entry[ENTRY_BYTES + 8])
{
    snprintf(entry, ENTRY_BYTES + 8, "%s%s", s->entry, which ? "_strided" : "");
    return entry;
}

static jit_request request_of(const job *j, char entry[ENTRY_BYTES + 8])
{
    const cuda_step *s = j->step;
    return (jit_request){.entry = cvyi_cuda_entry(s, j->which, entry),
                         .source = s->source,
                         .epilogue = s->epilogue[j->which],
                         .options = s->options[j->which],
                         .n_options = s->n_options[j->which],
                         .major = j->state->device->major,
                         .minor = j->state->device->minor,
                         .arch_specific = s->tc != NULL};
}

/* ---- jobs ---- */

static cvy_status list_jobs(workshop *w, cvy_plan *const *plans, int n)
{
    int most = 0;

    for (int i = 0; i < n; i++) most += 2 * ((const cuda_state *)plans[i]->state)->n_steps;
    w->jobs = cvyi_alloc((size_t)most + 1, sizeof *w->jobs);
    if (!w->jobs) return CVY_NO_MEMORY;
    for (int i = 0; i < n; i++) {
        const cuda_state *state = plans[i]->state;
        for (int k = 0; k < 2 * state->n_steps; k++) {
            cuda_step *s = &state->steps[k / 2];
            if (s->epilogue[k % 2] && !s->kernel[k % 2].function)
                w->jobs[w->n_jobs++] = (job){.state = state, .step = s, .which = k % 2};
        }
    }
    return CVY_OK;
}

/* Fills `like`, by a table of jobs with open addressing. */
static cvy_status find_alike(workshop *w)
{
    size_t slots = 16;
    int *table;

    while (slots < 2 * (size_t)w->n_jobs) slots *= 2;
    table = cvyi_alloc(slots, sizeof *table); /* job + 1; 0: free */
    if (!table) return CVY_NO_MEMORY;
    for (int i = 0; i < w->n_jobs; i++) {
        job *const j = &w->jobs[i];
        size_t at;
        memcpy(&at, j->key.digest, sizeof at);
        at &= slots - 1;
        while (table[at] && memcmp(&w->jobs[table[at] - 1].key, &j->key, sizeof j->key) != 0)
            at = (at + 1) & (slots - 1);
        if (!table[at]) table[at] = i + 1;
        j->like = table[at] - 1;
    }
    cvyi_free(table);
    return CVY_OK;
}

/* Uses code that is loaded; of jobs with the same code, the first one is compiled. */
static cvy_status find_loaded(job *j, workshop *w)
{
    const cuda_device *d = j->state->device;
    cuda_kernel *k = &j->step->kernel[j->which];
    cvy_status st;

    TRY(cvyi_cuda_enter(d, NULL));
    st = cvyi_modules_find(d, &j->key, (int)j->step->launch.dynamic_shared, k);
    cvyi_cuda_leave(d);
    if (st == CVY_OK && !k->function && !w->jobs[j->like].wanted) {
        w->jobs[j->like].wanted = true;
        w->wanted++;
    }
fail:
    return st;
}

/* ---- the progress line ---- */

/* CVY_PROGRESS decides; otherwise progress is printed on a terminal. */
static void start_progress(workshop *w)
{
    w->shows = cvyi_env_int(ENV_PROGRESS, isatty(STDERR_FILENO)) > 0;
    w->since = cvyi_now() + 2;
}

static void show_progress(workshop *w)
{
    w->done++;
    if (!w->shows || (!w->shown && cvyi_now() < w->since)) return;
    w->shown = true;
    fprintf(stderr, "\rconvoy: %d of %d kernels compiled", w->done, w->wanted);
}

/* ---- compiling and loading ---- */

static cvy_status compile_one(job *j)
{
    char entry[ENTRY_BYTES + 8];
    const jit_request request = request_of(j, entry);
    return cvyi_jit_compile(&request, &j->code);
}

static void *work(void *argument)
{
    workshop *w = argument;

    for (;;) {
        job *j;
        cvy_status st;
        pthread_mutex_lock(&w->lock);
        while (w->next < w->n_jobs && !w->jobs[w->next].wanted) w->next++;
        j = w->status == CVY_OK && w->next < w->n_jobs ? &w->jobs[w->next++] : NULL;
        pthread_mutex_unlock(&w->lock);
        if (!j) return NULL;
        st = compile_one(j);
        pthread_mutex_lock(&w->lock);
        if (st && w->status == CVY_OK) snprintf(w->message, sizeof w->message, "%s", cvy_last_error());
        if (st) w->status = st;
        show_progress(w);
        pthread_mutex_unlock(&w->lock);
    }
}

static cvy_status compile_all(workshop *w)
{
    enum { MOST = 64 };
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[MOST];
    int n = 0;

    start_progress(w);
    while (n < MOST && n + 1 < cores && n + 1 < w->wanted && !pthread_create(&threads[n], NULL, work, w)) n++;
    work(w);
    while (n) pthread_join(threads[--n], NULL);
    if (w->shown) fputs("\r\033[K", stderr);
    return w->status ? cvyi_fail(w->status, "%s", w->message) : CVY_OK;
}

static cvy_status load_one(const job *j, const jit_code *code)
{
    const cuda_device *d = j->state->device;
    cuda_kernel *k = &j->step->kernel[j->which];
    char entry[ENTRY_BYTES + 8];
    cvy_status st;

    if (k->function) return CVY_OK;
    TRY(cvyi_cuda_enter(d, NULL));
    st = cvyi_modules_load(d, &j->key, code, cvyi_cuda_entry(j->step, j->which, entry),
                           (int)j->step->launch.dynamic_shared, k);
    cvyi_cuda_leave(d);
fail:
    return st;
}

cvy_status cvyi_cuda_compile_steps(cvy_plan *const *plans, int n)
{
    workshop w = {.lock = PTHREAD_MUTEX_INITIALIZER};
    char entry[ENTRY_BYTES + 8];
    cvy_status st;

    TRY(list_jobs(&w, plans, n));
    for (int i = 0; i < w.n_jobs; i++) {
        const jit_request request = request_of(&w.jobs[i], entry);
        TRY(cvyi_jit_key(&request, &w.jobs[i].key));
    }
    TRY(find_alike(&w));
    for (int i = 0; i < w.n_jobs; i++) TRY(find_loaded(&w.jobs[i], &w));
    TRY(compile_all(&w));
    for (int i = 0; i < w.n_jobs; i++) TRY(load_one(&w.jobs[i], &w.jobs[w.jobs[i].like].code));
fail:
    for (int i = 0; i < w.n_jobs; i++) cvyi_jit_free(&w.jobs[i].code);
    cvyi_free(w.jobs);
    return st;
}

void cvyi_cuda_unload_steps(cuda_state *state)
{
    if (!state->n_steps || cvyi_cuda_enter(state->device, NULL) != CVY_OK) return;
    for (int i = 0; i < 2 * state->n_steps; i++)
        cvyi_modules_give(state->device, &state->steps[i / 2].kernel[i % 2]);
    cvyi_cuda_leave(state->device);
}
