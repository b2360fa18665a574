/* main.c - the convoy command: help, and the dispatch. */
#include <string.h>
#include "../src/util/util.h"
#include "cli.h"

static const struct {
    const char *name, *help;
} variables[] = {
#define ENV(id, name, takes, help) {name, help},
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
    fputs("convoy: fuses convolutions with the operators that follow them\n\n", to);
    fputs("usage: convoy COMMAND [CHAIN] [OPTIONS]\n\n", to);
    for (int i = 0; command_at(i); i++) {
        char left[32];
        snprintf(left, sizeof left, "%s%s", command_at(i)->name, command_at(i)->argument);
        fprintf(to, "  %-16s %s\n", left, command_at(i)->summary);
    }
    fputs("\nThe Python package adds bench FILE.py, eject FILE.py and report (doc/PYTORCH.md).\n", to);
    fputs("\nconvoy COMMAND --help lists the command's options. convoy --version prints the version.\n", to);
    print_chains(to);
    print_variables(to);
    fputs("\nExit status: 0 success, 1 a check failed, 2 bad usage, bad input or a missing device.\n", to);
}

static void print_command_help(const command_row *c)
{
    printf("usage: convoy %s%s [OPTIONS]\n\n%s\n%s\nOptions:\n", c->name, c->argument, c->summary, c->detail);
    options_print(stdout, c->bit);
    if (c->takes) print_chains(stdout);
    print_variables(stdout);
}

static int dispatch(const command_row *c, int argc, char **argv)
{
    options o;
    const int st = options_parse(&o, c->bit, argc, argv);
    if (st) return st;
    if (o.help) {
        print_command_help(c);
        return EXIT_FINE;
    }
    if (c->takes && !o.chain) return cli_error("%s needs a chain; convoy %s --help", c->name, c->name);
    if (!c->takes && !*c->argument && o.chain) return cli_error("%s takes no chain", c->name);
    return c->run(&o);
}

static bool is_python(const char *name)
{
    for (int i = 0; python_commands[i].name; i++)
        if (!strcmp(name, python_commands[i].name)) return true;
    return false;
}

static int unknown_command(const char *name)
{
    nearest near = {.word = name, .length = strlen(name)};
    for (int i = 0; command_at(i); i++) cvyi_near_try(&near, command_at(i)->name);
    for (int i = 0; python_commands[i].name; i++) cvyi_near_try(&near, python_commands[i].name);
    return near.best ? cli_error("unknown command '%s'; did you mean '%s'?", name, near.best)
                     : cli_error("unknown command '%s'; convoy --help lists them", name);
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
    for (int i = 0; command_at(i); i++)
        if (!strcmp(name, command_at(i)->name)) return finish(dispatch(command_at(i), argc - 2, argv + 2));
    if (is_python(name))
        return cli_error("%s comes with the Python package: run `pip install .` in Convoy's source folder, then "
                         "`convoy %s` from that environment",
                         name, name);
    if (argc > 1) return unknown_command(name);
    print_help(stderr);
    return EXIT_USAGE;
}
