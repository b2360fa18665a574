/* job.c - one chain on its way: graph, data, plan, run. */
#include <stdlib.h>
#include <string.h>
#include "../src/graph/graph.h"
#include "../src/util/half.h"
#include "../src/util/util.h"
#include "cli.h"
#include "npy.h"

static const char *const role_names[] = {"input", "parameter", "output"};

static char *shape_text(int32_t rank, const int64_t *dims, char line[160])
{
    int at = 0;
    for (int d = 0; d < rank; d++) at += sprintf(line + at, "%s%lld", d ? "," : "[", (long long)dims[d]);
    strcpy(line + at, rank ? "]" : "[]");
    return line;
}

/* Both printers of the library follow one rule: tell the size, then write. */
static char *printed(cvy_status (*print)(const void *, char *, size_t, size_t *), const void *what)
{
    size_t needed = 0;
    char *made;
    if (print(what, NULL, 0, &needed)) return NULL;
    made = malloc(needed);
    if (made && print(what, made, needed, NULL)) {
        free(made);
        return NULL;
    }
    return made;
}

static cvy_status print_graph(const void *graph, char *dst, size_t capacity, size_t *needed)
{
    return cvy_graph_print(graph, dst, capacity, needed);
}

static cvy_status print_plan(const void *plan, char *dst, size_t capacity, size_t *needed)
{
    return cvy_plan_print(plan, dst, capacity, needed);
}

static cvy_status print_why(const void *plan, char *dst, size_t capacity, size_t *needed)
{
    return cvy_plan_why(plan, dst, capacity, needed);
}

char *job_why_text(const job *j)
{
    char *made = printed(print_why, j->plan);
    if (!made) cli_library_error("plan: ");
    return made;
}

char *job_plan_text(const job *j)
{
    char *made = printed(print_plan, j->plan);
    if (!made) cli_library_error("plan: ");
    return made;
}

int job_open(job *j, const char *chain_text, cvy_dtype dtype)
{
    memset(j, 0, sizeof *j);
    if (cvyi_graph_parse_as(chain_text, dtype, &j->graph)) return cli_library_error("");
    hint(j->graph);
    j->text = printed(print_graph, j->graph);
    if (!j->text) return cli_library_error("");
    j->n = cvy_graph_tensors(j->graph);
    j->tensors = calloc((size_t)j->n, sizeof *j->tensors);
    j->buffers = calloc((size_t)j->n, sizeof *j->buffers);
    if (!j->tensors || !j->buffers) return cli_error("no memory");
    for (int32_t i = 0; i < j->n; i++) {
        tensor *t = &j->tensors[i];
        if (cvy_graph_tensor(j->graph, i, &t->info)) return cli_library_error("");
        t->count = 1;
        for (int d = 0; d < t->info.rank; d++) t->count *= t->info.dims[d];
    }
    return EXIT_FINE;
}

/* ---- data ---- */

/* A list of the chain's tensors of a role, and the one that a misspelt name may mean. */
static void list_role(const job *j, cvy_role role, nearest *near, text *all)
{
    for (int32_t i = 0; i < j->n; i++) {
        const cvy_tensor *t = &j->tensors[i].info;
        const char *part = strchr(t->name, '.');
        char line[160];
        if (t->role != (int32_t)role) continue;
        cvyi_text_add(all, "%s %s%s", all->len ? "," : "", t->name, shape_text(t->rank, t->dims, line));
        if (!near->best && part && strlen(part + 1) == near->length && !memcmp(part + 1, near->word, near->length))
            near->best = t->name;
        cvyi_near_try(near, t->name);
    }
    if (!all->len) cvyi_text_add(all, " none");
    if (near->best) cvyi_text_add(all, "; did you mean '%s'?", near->best);
}

static int no_tensor(const job *j, cvy_role role, const char *name, size_t len)
{
    nearest near = {.word = name, .length = len};
    text all = {0};
    int st;
    list_role(j, role, &near, &all);
    st = cli_error("the chain has no %s '%.*s'; it has%s", role_names[role], (int)len, name,
                   all.data ? all.data : "");
    cvyi_text_free(&all);
    return st;
}

static int no_file(const job *j, const char *argument)
{
    nearest near = {.word = argument, .length = strlen(argument)};
    text all = {0};
    int st;
    list_role(j, CVY_PARAM, &near, &all);
    st = cli_error("--param takes NAME=FILE.npy, not '%s'; the parameters:%s", argument, all.data ? all.data : "");
    cvyi_text_free(&all);
    return st;
}

/* Tensor of a role by name; without a name, number `position` of the role. NULL and a message if there is none.
 */
static tensor *find_tensor(job *j, cvy_role role, const char *name, size_t len, int position)
{
    for (int32_t i = 0; i < j->n; i++) {
        tensor *t = &j->tensors[i];
        if (t->info.role != (int32_t)role) continue;
        if (name ? strlen(t->info.name) == len && !memcmp(t->info.name, name, len) : !position--) return t;
    }
    if (name)
        no_tensor(j, role, name, len);
    else
        cli_error("more %s files than the chain has %ss", role_names[role], role_names[role]);
    return NULL;
}

/* "NAME=FILE" or "FILE". */
tensor *job_tensor_of(job *j, cvy_role role, const char *argument, int position, const char **path)
{
    const char *equals = strchr(argument, '=');
    *path = equals ? equals + 1 : argument;
    return find_tensor(j, role, equals ? argument : NULL, equals ? (size_t)(equals - argument) : 0, position);
}

static int load_file(tensor *t, const char *path)
{
    char message[NPY_MESSAGE], a[160], b[160];
    npy_array array;
    void *bytes = NULL;
    if (!npy_read(path, &array, &bytes, message)) return cli_error("%s: %s", path, message);
    if (array.rank != t->info.rank || memcmp(array.dims, t->info.dims, (size_t)array.rank * sizeof *array.dims)) {
        free(bytes);
        return cli_error("%s: has shape %s, %s %s has %s", path, shape_text(array.rank, array.dims, a),
                         role_names[t->info.role], t->info.name, shape_text(t->info.rank, t->info.dims, b));
    }
    if ((int32_t)array.dtype != t->info.dtype) {
        free(bytes);
        return cli_error("%s: elements are '%s', %s %s is %s, which is '%s' in files", path, npy_descr(array.dtype),
                         role_names[t->info.role], t->info.name, cvyi_dtype_name((cvy_dtype)t->info.dtype),
                         npy_descr((cvy_dtype)t->info.dtype));
    }
    npy_copy(&array, t->host);
    free(bytes);
    t->loaded = true;
    return EXIT_FINE;
}

static int load_files(job *j, cvy_role role, const char *const *files, int n)
{
    for (int i = 0; i < n; i++) {
        const char *path;
        tensor *t = NULL;
        if (role == CVY_PARAM && !strchr(files[i], '=')) return no_file(j, files[i]);
        t = job_tensor_of(j, role, files[i], i, &path);
        if (!t) return EXIT_USAGE;
        if (t->loaded) return cli_error("%s %s is given twice", role_names[role], t->info.name);
        if (load_file(t, path)) return EXIT_USAGE;
    }
    return EXIT_FINE;
}

/* A tensor as cvy_plan_run() takes it. */
static size_t tensor_bytes(const tensor *t)
{
    return (size_t)(t->count * cvyi_dtype_bytes((cvy_dtype)t->info.dtype));
}

/* All bits set is a NaN in every dtype, so an output element that no pass writes is detected. Also touches every
 * page. */
static void *filled(size_t bytes)
{
    void *memory = host_alloc(bytes);
    if (memory) memset(memory, 0xff, bytes);
    return memory;
}

static int allocate(job *j)
{
    char line[160];
    for (int32_t i = 0; i < j->n; i++) {
        tensor *t = &j->tensors[i];
        const bool other = t->info.dtype != CVY_FLOAT32;
        t->host = filled((size_t)t->count * sizeof *t->host);
        if (other) t->words = filled(tensor_bytes(t));
        if (!t->host || (other && !t->words))
            return cli_error("no memory for %s%s", t->info.name, shape_text(t->info.rank, t->info.dims, line));
    }
    return EXIT_FINE;
}

int job_fill(job *j, const options *o, bool random)
{
    char line[160];
    const uint64_t seed = o->seed == SEED_UNSET ? 0 : (uint64_t)o->seed;
    if (allocate(j) || load_files(j, CVY_INPUT, o->inputs, o->n_inputs) ||
        load_files(j, CVY_PARAM, o->params, o->n_params))
        return EXIT_USAGE;
    for (int32_t i = 0; i < j->n; i++) {
        const tensor *t = &j->tensors[i];
        const bool input = t->info.role == CVY_INPUT;
        if (t->info.role == CVY_OUTPUT || t->loaded) continue;
        if (!random)
            return cli_error("%s %s%s is not given: --%s %s=FILE.npy, or --seed N for a random one",
                             role_names[t->info.role], t->info.name, shape_text(t->info.rank, t->info.dims, line),
                             input ? "input" : "param", t->info.name);
        data_fill(t->host, &t->info, (data_kind)o->data, seed);
    }
    return EXIT_FINE;
}

/* ---- plan and run ---- */

static void drop_plan(job *j)
{
    for (int32_t i = 0; i < j->n && j->tensors; i++) {
        if (j->tensors[i].remote) j->device->free(j->tensors[i].remote);
        j->tensors[i].remote = NULL;
    }
    if (j->workspace) j->device->free(j->workspace);
    j->workspace = NULL;
    cvy_plan_free(j->plan);
    j->plan = NULL;
}

int job_plan(job *j, const cvy_options *o)
{
    const double start = now();
    drop_plan(j);
    if (cvy_plan_create(j->graph, o, &j->plan)) return cli_library_error("");
    j->plan_seconds = now() - start;
    return EXIT_FINE;
}

static int place(job *j, tensor *t, cvy_buffer *buffer)
{
    const size_t bytes = tensor_bytes(t);
    void *data = t->words ? t->words : t->host;
    for (int64_t i = 0; t->words && t->info.role != CVY_OUTPUT && i < t->count; i++)
        cvyi_element_set((cvy_dtype)t->info.dtype, t->words, i, t->host[i]);
    *buffer = (cvy_buffer){data, NULL};
    if (!j->device->upload) return EXIT_FINE; /* the host's memory is the device's */
    t->remote = j->device->alloc(bytes);
    if (!t->remote) return cli_error("no memory on the device for %s: %zu bytes", t->info.name, bytes);
    if (j->device->upload(t->remote, data, bytes)) return cli_library_error("");
    buffer->data = t->remote;
    return EXIT_FINE;
}

int job_place(job *j, int ordinal)
{
    if (device_open(cvy_plan_device(j->plan), ordinal, &j->device)) return cli_library_error("");
    j->workspace_size = cvy_plan_workspace(j->plan);
    j->workspace = j->device->alloc(j->workspace_size);
    if (!j->workspace) return cli_error("no memory for a workspace of %zu bytes", j->workspace_size);
    for (int32_t i = 0; i < j->n; i++)
        if (place(j, &j->tensors[i], &j->buffers[i])) return EXIT_USAGE;
    return EXIT_FINE;
}

int job_run(job *j, uint32_t flags, double *seconds)
{
    double ignored;
    if (j->device->time_start() ||
        cvy_plan_run(j->plan, j->buffers, j->n, j->workspace, j->workspace_size, flags, j->device->stream) ||
        j->device->time_stop(seconds ? seconds : &ignored))
        return cli_library_error("run: ");
    return EXIT_FINE;
}

int job_fetch(job *j)
{
    for (int32_t i = 0; i < j->n; i++) {
        tensor *t = &j->tensors[i];
        if (t->info.role != CVY_OUTPUT) continue;
        if (t->remote && j->device->download(t->words ? t->words : t->host, t->remote, tensor_bytes(t)))
            return cli_library_error("");
        for (int64_t k = 0; t->words && k < t->count; k++)
            t->host[k] = cvyi_widen((cvy_dtype)t->info.dtype, ((const uint16_t *)t->words)[k]);
    }
    return EXIT_FINE;
}

void job_close(job *j)
{
    drop_plan(j);
    for (int32_t i = 0; i < j->n && j->tensors; i++) free(j->tensors[i].host), free(j->tensors[i].words);
    free(j->tensors);
    free(j->buffers);
    free(j->text);
    cvy_graph_free(j->graph);
    memset(j, 0, sizeof *j);
}
