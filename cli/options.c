/* options.c - the options of all commands: one table, one parser, one help printer. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "../src/util/util.h"
#include "cli.h"

typedef enum take { TAKE_SWITCH, TAKE_WORD, TAKE_COUNT, TAKE_LIST } take;

typedef struct option {
    const char *name;
    const char *value; /* what help shows after the name; the words of TAKE_WORD, in the order of their numbers */
    const char *help;
    take kind;
    unsigned commands; /* CMD_... bits */
    size_t field;      /* offset in struct options */
    size_t count;      /* TAKE_LIST: offset of the list's length */
    int base;          /* TAKE_WORD: number of the first word; TAKE_COUNT: the smallest number taken */
} option;

#define AT(field) offsetof(options, field)
enum { CMD_TIMED = CMD_BENCH, CMD_CHECKED = CMD_CHECK | CMD_BENCH | CMD_DEMO, CMD_DATA = CMD_CHECK | CMD_BENCH };

static const option table[] = {
    {"--device", "auto|ref|cpu|cuda", "where to run; auto: the GPU if there is one, else the CPU", TAKE_WORD,
     CMD_PLANNED, AT(plan.device), 0, CVY_AUTO},
    {"--ordinal", "N", "which GPU (default 0)", TAKE_COUNT, CMD_PLANNED, AT(plan.ordinal), 0, 0},
    {"--threads", "N", "CPU threads; 0: as many as the process may use", TAKE_COUNT, CMD_PLANNED, AT(plan.threads),
     0, 0},
    {"--precision", "fp32|tf32", "tf32: one product per multiplication on tensor cores", TAKE_WORD, CMD_PLANNED,
     AT(plan.precision), 0, CVY_FP32},
    {"--effort", "estimate|measure", "choose plans by the cost model, or by timing the best few", TAKE_WORD,
     CMD_PLANNED, AT(plan.effort), 0, CVY_ESTIMATE},
    {"--winograd", "on|off", "off: forbid Winograd convolutions", TAKE_WORD, CMD_PLANNED, AT(plan.winograd), 0,
     CVY_ON},
    {"--fuse", "on|off", "off: one pass per operator", TAKE_WORD, CMD_PLANNED & ~(unsigned)CMD_DEMO, AT(plan.fuse),
     0, CVY_ON},
    {"--dtype", "fp32|fp16|bf16", "dtype of tensors whose declaration has none (x[2,3]:bf16 has one)", TAKE_WORD,
     CMD_PLANNED & ~(unsigned)CMD_DEMO, AT(dtype), 0, CVY_FLOAT32},
    {"--data", "uniform|normal|integer|special", "random inputs; special: including NaN, inf, -0 and denormals",
     TAKE_WORD, CMD_DATA, AT(data), 0, DATA_UNIFORM},
    {"--seed", "N", "seed of the random numbers (default 0)", TAKE_COUNT, CMD_CHECKED | CMD_RUN, AT(seed), 0, 0},
    {"--input", "[NAME=]FILE.npy", "an input; without NAME, the next one in the chain's order", TAKE_LIST,
     CMD_DATA | CMD_RUN, AT(inputs), AT(n_inputs), 0},
    {"--param", "NAME=FILE.npy", "a parameter", TAKE_LIST, CMD_DATA | CMD_RUN, AT(params), AT(n_params), 0},
    {"--output", "[NAME=]FILE.npy", "where an output goes", TAKE_LIST, CMD_RUN, AT(outputs), AT(n_outputs), 0},
    {"--samples", "N", "samples of the batch to compare with float64", TAKE_COUNT, CMD_DATA, AT(samples), 0, 1},
    {"--repeat", "N", "timed runs (default: about two seconds of them)", TAKE_COUNT, CMD_TIMED, AT(repeat), 0, 1},
    {"--compare", NULL, "also time the chain unfused", TAKE_SWITCH, CMD_TIMED, AT(compare), 0, 0},
    {"--measure", NULL, "time every pass, and print measured and predicted times", TAKE_SWITCH, CMD_PLAN,
     AT(measure), 0, 0},
    {"--why", NULL, "for every pass, each kernel's predicted time or its reason to refuse", TAKE_SWITCH, CMD_PLAN,
     AT(why), 0, 0},
    {"--json", NULL, "one JSON object instead of text", TAKE_SWITCH, CMD_PLAN | CMD_CHECK | CMD_BENCH | CMD_OPS,
     AT(json), 0, 0},
    {"--help", NULL, "this text", TAKE_SWITCH, UINT_MAX, AT(help), 0, 0},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

static void *field_at(options *o, size_t offset)
{
    return (char *)o + offset;
}

/* The number of `value` among "a|b|c"; -1 if it is none of them. */
static int word_number(const char *words, const char *value)
{
    const size_t len = strlen(value);
    for (int i = 0;; i++) {
        const size_t here = strcspn(words, "|");
        if (here == len && !memcmp(words, value, len)) return i;
        if (!words[here]) return -1;
        words += here + 1;
    }
}

static int set_option(options *o, const option *d, const char *value)
{
    if (d->kind == TAKE_SWITCH) {
        *(bool *)field_at(o, d->field) = true;
    } else if (d->kind == TAKE_WORD) {
        const int number = word_number(d->value, value);
        if (number < 0) return cli_error("%s takes %s, not '%s'", d->name, d->value, value);
        *(int32_t *)field_at(o, d->field) = d->base + number;
    } else if (d->kind == TAKE_COUNT) {
        char *end = NULL;
        const long number = strtol(value, &end, 10);
        if (!*value || *end || number < d->base || number > INT_MAX)
            return cli_error("%s takes a whole number, at least %d, not '%s'", d->name, d->base, value);
        *(int32_t *)field_at(o, d->field) = (int32_t)number;
    } else {
        int32_t *count = field_at(o, d->count);
        if (*count == MAX_FILES) return cli_error("%s is given more than %d times", d->name, MAX_FILES);
        ((const char **)field_at(o, d->field))[(*count)++] = value;
    }
    return EXIT_FINE;
}

/* "--name" or "--name=value". */
static const option *find_option(const char *argument, unsigned command)
{
    const size_t len = strcspn(argument, "=");
    for (int i = 0; i < N_OPTIONS; i++)
        if (strlen(table[i].name) == len && !memcmp(table[i].name, argument, len) && table[i].commands & command)
            return &table[i];
    return NULL;
}

/* Proposes the nearest option, or says that other commands have this one. */
static int unknown_option(const char *argument, unsigned command)
{
    nearest near = {.word = argument, .length = strcspn(argument, "=")};
    if (find_option(argument, UINT_MAX))
        return cli_error("'%s' is not an option of this command; --help lists them", argument);
    for (int i = 0; i < N_OPTIONS; i++)
        if (table[i].commands & command) cvyi_near_try(&near, table[i].name);
    return near.best ? cli_error("unknown option '%s'; did you mean '%s'?", argument, near.best)
                     : cli_error("unknown option '%s'; --help lists them", argument);
}

int options_parse(options *o, unsigned command, int argc, char **argv)
{
    bool names = true; /* until "--" */
    memset(o, 0, sizeof *o);
    o->plan.size = sizeof o->plan;
    o->plan.strided = CVY_OFF; /* the command lays tensors out itself */
    o->seed = SEED_UNSET;
    for (int i = 0; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        const option *d;
        int st;
        if (names && !strcmp(argv[i], "--")) {
            names = false;
            continue;
        }
        if (!names || argv[i][0] != '-' || !argv[i][1]) {
            if (o->chain)
                return cli_error("one chain at a time: '%s' is a second one (put the chain in quotes)", argv[i]);
            o->chain = argv[i];
            continue;
        }
        d = find_option(!strcmp(argv[i], "-h") ? "--help" : argv[i], command);
        if (!d) return unknown_option(argv[i], command);
        if (d->kind == TAKE_SWITCH && value) return cli_error("%s takes no value", d->name);
        if (d->kind != TAKE_SWITCH && !value && i + 1 == argc)
            return cli_error("%s needs a value: %s", d->name, d->value);
        if (value)
            value++;
        else if (d->kind != TAKE_SWITCH)
            value = argv[++i];
        st = set_option(o, d, value);
        if (st) return st;
    }
    return EXIT_FINE;
}

bool options_each(unsigned command, int *at, const char **name, const char **value)
{
    while (*at < N_OPTIONS && !(table[*at].commands & command)) ++*at;
    if (*at == N_OPTIONS) return false;
    *name = table[*at].name;
    *value = table[*at].kind == TAKE_WORD ? table[*at].value : table[*at].value ? "" : NULL;
    ++*at;
    return true;
}

void options_print(FILE *to, unsigned command)
{
    for (int i = 0; i < N_OPTIONS; i++) {
        char left[64];
        if (!(table[i].commands & command)) continue;
        snprintf(left, sizeof left, "%s%s%s", table[i].name, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        fprintf(to, "  %-39s %s\n", left, table[i].help);
    }
}
