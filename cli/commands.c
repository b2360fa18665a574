/* commands.c - the table of commands. */
#include "cli.h"

static const command_row commands[] = {
    {"demo", "", "describe, plan, run and check three small blocks", "", CMD_DEMO, false, cmd_demo, NULL},
    {"plan", " CHAIN", "print how a chain would be computed",
     "Rewrites, passes, what each reads and writes, predicted time, and rejected alternatives with their "
     "reasons.\n",
     CMD_PLAN, true, cmd_plan, NULL},
    {"check", " CHAIN", "run a chain and compare the result with float64",
     "Exit status 1 if the error exceeds the bound derived from the chain's depth, or if a NaN or inf is "
     "misplaced.\n",
     CMD_CHECK, true, cmd_check, NULL},
    {"bench", " CHAIN", "time a chain and compare it with the machine's limits",
     "Prints the median and the minimum time of runs on prepared parameters, and the spread (half the\n"
     "interquartile range, as a share of the median). GFLOP/s count convolutions as direct ones.\n\n"
     "convoy bench FILE.py (with the Python package) checks a problem file as in KernelBench, with Model,\n"
     "get_inputs() and get_init_inputs(), and times it against eager PyTorch and torch.compile.\n",
     CMD_BENCH, true, cmd_bench, "--seconds --no-compile"},
    {"run", " CHAIN", "run a chain on .npy files",
     "A file has the element type of its tensor, in C or Fortran order: '<f4' for fp32, '<f2' for fp16, '<u2' for\n"
     "bf16 (the upper 16 bits of a float32). A missing tensor is an error; with --seed it is random.\n"
     "Outputs are written to temporary files, then renamed.\n",
     CMD_RUN, true, cmd_run, NULL},
    {"ops", "", "list the operators with their arguments and defaults", "", CMD_OPS, false, cmd_ops, NULL},
    {"cache", " ACTION", "compiled kernels on disk: list, verify, clear or size",
     "list: print all entries, the least recently used first. verify: read all entries and remove damaged ones\n"
     "(exit status 1 if there are any). clear: remove all. size: print the size and the limit (CVY_CACHE_MB).\n",
     CMD_CACHE, false, cmd_cache, NULL},
    {"completion", " SHELL", "print a script that completes this command in bash or zsh",
     "bash: eval \"$(convoy completion bash)\"; zsh: save the output as _convoy in a folder of $fpath\n",
     CMD_COMPLETION, false, cmd_completion, NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

const command_row *command_at(int index)
{
    return index < N_COMMANDS ? &commands[index] : NULL;
}

const python_command python_commands[] = {
    {"eject", "--output --precision"},
    {"report", "--results --output --update --check --screenshots"},
    {NULL, NULL},
};
