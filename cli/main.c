/* main.c - the convoy command: the table of commands, their help, and the dispatch. */
#include <string.h>
#include "cli.h"

typedef struct command {
    const char *name, *argument, *summary;
    const char *detail; /* after the summary in the command's own help */
    unsigned bit;
    bool chain; /* takes one; else its argument is the command's own */
    int (*run)(const options *o);
} command;

static const command commands[] = {
    {"demo", "", "describe, plan, run and check three small blocks", "", CMD_DEMO, false, cmd_demo},
    {"plan", " CHAIN", "print how a chain would be computed",
     "Rewrites, passes, what each reads and writes, predicted time, and rejected alternatives with their "
     "reasons.\n",
     CMD_PLAN, true, cmd_plan},
    {"check", " CHAIN", "run a chain and compare the result with float64",
     "Exit status 1 where the error exceeds the bound derived from the chain's depth, or a NaN or inf is "
     "misplaced.\n",
     CMD_CHECK, true, cmd_check},
    {"bench", " CHAIN", "time a chain and set it beside what the machine can do",
     "Times are the median of runs on prepared parameters. GFLOP/s count convolutions as direct ones.\n", CMD_BENCH,
     true, cmd_bench},
    {"run", " CHAIN", "run a chain on .npy files",
     "Files have the element type of their tensor: '<f4' for fp32, '<f2' for fp16, '<u2' for bf16 as words of 16\n"
     "bits; C or Fortran order. Parameters that are not given are an error, unless --seed asks for random ones.\n"
     "Outputs are written aside and renamed.\n",
     CMD_RUN, true, cmd_run},
    {"ops", "", "list the operators with their arguments and defaults", "", CMD_OPS, false, cmd_ops},
    {"cache", " ACTION", "compiled kernels on disk: list, verify, clear or size",
     "list: every entry, the one used longest ago first. verify: reads them all; damaged ones are removed, exit "
     "status "
     "1.\nsize: how much there is, and how much there may be (CVY_CACHE_MB).\n",
     CMD_CACHE, false, cmd_cache},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const struct {
    const char *name, *help;
} variables[] = {
#define ENV(id, name, help) {name, help},
#include "../src/util/env.def"
#undef ENV
};

static void print_variables(FILE *to)
{
    fputs("\nEnvironment:\n", to);
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        fprintf(to, "  %-16s %s\n", variables[i].name, variables[i].help);
}

static void print_chains(FILE *to)
{
    static const char names[] = "ABC";
    fputs("\nCHAIN is chain text, a file that holds it, - for standard input, or a block's name:\n", to);
    for (int i = 0; i < 3; i++) fprintf(to, "  %c  %s\n", names[i], chain_blocks[i]);
}

static void print_help(FILE *to)
{
    fputs("convoy: fuses a convolution with the operators around it\n\n", to);
    fputs("usage: convoy COMMAND [CHAIN] [OPTIONS]\n\n", to);
    for (int i = 0; i < N_COMMANDS; i++) {
        char left[32];
        snprintf(left, sizeof left, "%s%s", commands[i].name, commands[i].argument);
        fprintf(to, "  %-16s %s\n", left, commands[i].summary);
    }
    fputs("\nThe Python package's command adds bench FILE.py, eject FILE.py and report (doc/PYTORCH.md).\n", to);
    fputs("\nconvoy COMMAND --help lists the command's options. convoy --version prints the version.\n", to);
    print_chains(to);
    print_variables(to);
    fputs("\nExit status: 0 fine, 1 a check failed, 2 bad usage, bad input or a device that is not there.\n", to);
}

static void print_command_help(const command *c)
{
    printf("usage: convoy %s%s [OPTIONS]\n\n%s\n%s\nOptions:\n", c->name, c->argument, c->summary, c->detail);
    options_print(stdout, c->bit);
    if (c->chain) print_chains(stdout);
    print_variables(stdout);
}

static int dispatch(const command *c, int argc, char **argv)
{
    options o;
    const int st = options_parse(&o, c->bit, argc, argv);
    if (st) return st;
    if (o.help) {
        print_command_help(c);
        return EXIT_FINE;
    }
    if (c->chain && !o.chain) return cli_error("%s needs a chain; convoy %s --help", c->name, c->name);
    if (!c->chain && !*c->argument && o.chain) return cli_error("%s takes no chain", c->name);
    return c->run(&o);
}

/* Commands of the Python package, which hands everything else to this program. */
static bool is_python(const char *name)
{
    return !strcmp(name, "eject") || !strcmp(name, "report");
}

/* Output that could not be written is a failure too: a full disk, a closed pipe. */
static int finish(int st)
{
    if (fflush(stdout) || ferror(stdout)) return cli_error("standard output cannot be written");
    return st;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--version")) {
        printf("convoy %s\n", cvy_version());
        return finish(EXIT_FINE);
    }
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        print_help(stdout);
        return finish(EXIT_FINE);
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(name, commands[i].name)) return finish(dispatch(&commands[i], argc - 2, argv + 2));
    if (is_python(name))
        return cli_error("%s comes with the Python package: run `pip install .` in Convoy's source folder, then "
                         "`convoy %s` from that environment",
                         name, name);
    if (argc > 1) return cli_error("unknown command '%s'; convoy --help lists them", name);
    print_help(stderr);
    return EXIT_USAGE;
}
