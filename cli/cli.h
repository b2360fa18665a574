/* cli.h - what the files of the convoy command share.
 *
 * Functions that can fail return an exit status (EXIT_FINE, ...) and have printed why. A `job` is one chain on its
 * way through the command: graph, data, plan, run. */
#ifndef CONVOY_CLI_H
#define CONVOY_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "convoy.h"

enum { EXIT_FINE = 0, EXIT_CHECK_FAILED = 1, EXIT_USAGE = 2 };
enum { MAX_FILES = 64 };

/* ---- report.c ---- */

/* "convoy: message" on standard error; returns EXIT_USAGE. */
int cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with the library's last message after `what` ("plan: "; may be ""). */
int cli_library_error(const char *what);

/* A line on standard error: on a terminal it overwrites itself, elsewhere there is one every few seconds. */
void progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);

/* ---- options.c ---- */

typedef enum data_kind { DATA_UNIFORM, DATA_NORMAL, DATA_INTEGER, DATA_SPECIAL } data_kind;

typedef struct options {
    cvy_options plan;  /* what the library is told */
    const char *chain; /* the positional argument; NULL: none */
    const char *inputs[MAX_FILES], *params[MAX_FILES], *outputs[MAX_FILES]; /* FILE or NAME=FILE */
    int32_t n_inputs, n_params, n_outputs;
    int32_t data;    /* a data_kind */
    int32_t dtype;   /* a cvy_dtype: of tensors whose declaration names none */
    int32_t seed;    /* of the random data; SEED_UNSET: --seed was not given */
    int32_t samples; /* samples to check; 0: as many as the command finds right */
    int32_t repeat;  /* timed runs; 0: for about two seconds */
    bool json, compare, measure, why, help;
} options;
enum { SEED_UNSET = -1 };

/* argv after the command's name. `command` is one bit of the option table's. */
int options_parse(options *o, unsigned command, int argc, char **argv);
/* The options that a command takes, for its help. */
void options_print(FILE *to, unsigned command);
/* The next of them from number *at on: its value's words "a|b", "" if it takes any value, NULL if none.
 * False: there are no more. */
bool options_each(unsigned command, int *at, const char **name, const char **value);

/* ---- busy.c ---- */

typedef struct load {
    int processors; /* that this process may use */
    double others;  /* of them, on average, taken by other processes; NAN: not known */
    bool is_busy;   /* so many that times are not reliable */
    double busy, own, start;
} load;
void load_start(load *l);
void load_stop(load *l); /* sets `others` and `is_busy` */

/* ---- the commands (commands.c has their table) ---- */

enum {
    CMD_DEMO = 1,
    CMD_PLAN = 2,
    CMD_CHECK = 4,
    CMD_BENCH = 8,
    CMD_RUN = 16,
    CMD_OPS = 32,
    CMD_CACHE = 64,
    CMD_COMPLETION = 128,
    CMD_PLANNED = CMD_DEMO | CMD_PLAN | CMD_CHECK | CMD_BENCH | CMD_RUN
};
int cmd_demo(const options *o);
int cmd_plan(const options *o);
int cmd_check(const options *o);
int cmd_bench(const options *o);
int cmd_run(const options *o);
int cmd_ops(const options *o);
int cmd_cache(const options *o);
int cmd_completion(const options *o);

typedef struct command_row {
    const char *name, *argument, *summary;
    const char *detail; /* after the summary in the command's own help */
    unsigned bit;
    bool takes; /* a chain; else its argument is the command's own */
    int (*run)(const options *o);
    const char *python; /* options that the Python package adds; NULL: none */
} command_row;
const command_row *command_at(int index); /* NULL after the last */
/* Commands of the Python package, which hands everything else to this program; without a name after the last. */
typedef struct python_command {
    const char *name, *options;
} python_command;
extern const python_command python_commands[];

/* ---- chain.c: the text of a chain from what is on the command line ---- */

/* Chain text, a block's name (A, B, C), a file's, or - for standard input. *text is the caller's to free. */
int chain_load(const char *argument, char **text);
extern const char *const chain_blocks[3];       /* full size */
extern const char *const chain_small_blocks[3]; /* a few samples, small images */

/* ---- hint.c ---- */

/* Says on standard error what of the chain is probably not what was meant. */
void hint(const cvy_graph *g);

/* ---- job.c ---- */

typedef struct tensor {
    cvy_tensor info;
    int64_t count; /* elements */
    float *host;   /* count floats, contiguous, that its dtype can hold; not NULL, even if empty */
    void *words;   /* the elements in a dtype other than float32; NULL if it is that */
    bool loaded;   /* from a file */
    void *remote;  /* the copy in the device's own memory; NULL: words or host itself are handed to run() */
} tensor;

typedef struct job {
    cvy_graph *graph;
    cvy_plan *plan;
    char *text; /* the graph, printed */
    tensor *tensors;
    cvy_buffer *buffers; /* n, for run() */
    void *workspace;     /* on the plan's device */
    size_t workspace_size;
    int32_t n;
    const struct device *device; /* where the plan runs */
    double plan_seconds;         /* how long planning took */
} job;

/* dtype: of inputs and parameters that the text gives none. */
int job_open(job *j, const char *chain_text, cvy_dtype dtype);
/* Memory for every tensor, filled by --input and --param, the rest with random numbers if `random`. */
int job_fill(job *j, const options *o, bool random);
/* Plans, in place of a plan that is there. */
int job_plan(job *j, const cvy_options *o);
/* Workspace, and tensors if the plan wants them. After job_fill and job_plan. */
int job_place(job *j, int ordinal);
/* Runs once and waits for the end. *seconds may be NULL. */
int job_run(job *j, uint32_t flags, double *seconds);
/* Brings the outputs to tensors[].host. */
int job_fetch(job *j);
void job_close(job *j);
/* cvy_plan_print() and cvy_plan_why() as strings that the caller frees; NULL and a message on failure. */
char *job_plan_text(const job *j);
char *job_why_text(const job *j);
/* The tensor that "NAME=FILE" or "FILE" means (without a name: number `position` of its role), and the file. NULL
 * and a message if there is none. */
tensor *job_tensor_of(job *j, cvy_role role, const char *argument, int position, const char **path);

/* ---- device.c, gpu.c: memory, time and limits where a plan runs ---- */

/* What the machine could do, for the shares that bench prints. */
typedef struct platform {
    char name[128];
    int threads;        /* that the plan uses */
    double fma_gflops;  /* float32 multiply-adds, two operations each; 0: not known */
    double gbps;        /* of memory; 0: not known */
    const char *source; /* "measured", or where the two figures are from */
} platform;

typedef struct device {
    void *stream;                 /* for run() */
    void *(*alloc)(size_t bytes); /* NULL: none left */
    void (*free)(void *memory);
    cvy_status (*upload)(void *dst, const void *src, size_t bytes);
    cvy_status (*download)(void *dst, const void *src, size_t bytes);
    cvy_status (*time_start)(void);              /* caches are cold after it, if that is possible */
    cvy_status (*time_stop)(double *seconds);    /* waits */
    void (*describe)(platform *p, bool measure); /* name, and the limits if `measure` */
} device;

/* Opens the device of a plan. */
cvy_status device_open(cvy_device id, int ordinal, const device **out);
cvy_status gpu_open(int ordinal, const device **out);
const char *device_name(cvy_device id);
/* Name, threads, and the limits if `measure`. */
void platform_describe(platform *p, const job *j, const options *o, bool measure);
/* Host memory, aligned to CVY_ALIGN, on huge pages if there is enough of it; freed by free(). */
void *host_alloc(size_t bytes);

/* ---- data.c ---- */

/* Random elements, rounded to the tensor's dtype: the same for the same seed, kind, tensor name and dtype. */
void data_fill(float *dst, const cvy_tensor *t, data_kind kind, uint64_t seed);
/* Moves every finite element to a neighbour in its dtype or leaves it, at random. */
void data_nudge(float *data, int64_t count, cvy_dtype dtype, uint64_t seed);
void data_nudge_double(double *data, int64_t count, cvy_dtype dtype, uint64_t seed); /* rounded to the dtype, too */

/* ---- batch.c ---- */

/* The same graph for one sample, if every output sample depends only on the input samples of the same index; *batch
 * is then their number. NULL if that cannot be shown, or if there are fewer than two samples. */
cvy_graph *batch_split(const cvy_graph *graph, int64_t *batch);

/* ---- oracle.c: comparison with float64 ---- */

typedef struct verdict {
    double max_abs_error, rel_error; /* rel: of the largest magnitude of the reference */
    double bound;                    /* what rel_error may be */
    int64_t mismatches;              /* NaN or inf on one side only, or of the other sign */
    int64_t samples, batch;          /* checked, of how many; both 1: all of it, in one piece */
    bool checked;                    /* false: it would have taken too long */
    bool ok;
} verdict;

enum { CHECK_ALL = 0, CHECK_QUICKLY = -1 };
/* Compares the outputs in tensors[].host. samples: how many to check, spread over the batch; CHECK_QUICKLY: a
 * second's worth or so, nothing if even that is too long. */
int oracle_check(const job *j, const options *o, int64_t samples, verdict *out);
/* "6 of 128 samples" */
const char *oracle_extent(const verdict *v, char text[64]);

/* ---- stats.c ---- */

double now(void); /* seconds, monotonic */
double median(double *values, int n);
/* Half of what lies between the quartiles of sorted values. */
double spread(const double *sorted, int n); /* sorts them */

/* ---- json.c: one flat object, keys in the order of the calls ---- */

void json_begin(void);
void json_text(const char *key, const char *value);
void json_number(const char *key, double value); /* null for nan and inf */
void json_bool(const char *key, bool value);
void json_null(const char *key);
void json_end(void);
/* A string as JSON writes it, quotes and all. */
void json_string(const char *value);

#endif
