/* cmd_run.c - `convoy run`: a chain on .npy files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "cli.h"
#include "npy.h"

/* All files are written aside before the first gets its name: a failure leaves what was there. */
static int write_outputs(job *j, const options *o)
{
    char message[NPY_MESSAGE];
    const char *path = NULL;
    aside *files = calloc((size_t)o->n_outputs, sizeof *files);
    int st = files ? EXIT_FINE : cli_error("no memory"), written = 0;

    for (int i = 0; !st && i < o->n_outputs; i++) {
        const tensor *t = job_tensor_of(j, CVY_OUTPUT, o->outputs[i], i, &path);
        if (!npy_write(&files[i], path, &t->info, t->host, message))
            st = cli_error("%s: %s", path, message);
        else
            written++;
    }
    for (int i = 0; i < written; i++) {
        job_tensor_of(j, CVY_OUTPUT, o->outputs[i], i, &path);
        if (st)
            aside_discard(&files[i]);
        else if (!aside_commit(&files[i]))
            st = cli_error("%s: %s", path, strerror(errno));
    }
    free(files);
    return st;
}

/* Names are checked before anything is computed. */
static int check_outputs(job *j, const options *o)
{
    const char *path;
    if (!o->n_outputs) return cli_error("run needs --output FILE.npy");
    for (int i = 0; i < o->n_outputs; i++)
        if (!job_tensor_of(j, CVY_OUTPUT, o->outputs[i], i, &path)) return EXIT_USAGE;
    return EXIT_FINE;
}

int cmd_run(const options *o)
{
    char *chain = NULL;
    job j = {0};
    int st = chain_load(o->chain, &chain);

    if (!st) st = job_open(&j, chain, (cvy_dtype)o->dtype);
    if (!st) st = check_outputs(&j, o);
    if (!st) st = job_plan(&j, &o->plan);
    if (!st) st = job_fill(&j, o, o->seed != SEED_UNSET);
    if (!st) st = job_place(&j, o->plan.ordinal);
    if (!st) st = job_run(&j, 0, NULL);
    if (!st) st = job_fetch(&j);
    if (!st) st = write_outputs(&j, o);
    free(chain);
    job_close(&j);
    return st;
}
