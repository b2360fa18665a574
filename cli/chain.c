/* chain.c - the chain that an argument names, and the three blocks. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "cli.h"

const char *const chain_blocks[3] = {
    "x[128,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[128,8,128,128] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[128,8,256,256] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
};

const char *const chain_small_blocks[3] = {
    "x[4,8,128,128] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[4,8,128,128] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[4,8,128,128] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
};

enum { MAX_CHAIN = 1 << 20 }; /* bytes of a file that may be a chain */

static int copy_text(const char *from, char **text)
{
    *text = strdup(from);
    return *text ? EXIT_FINE : cli_error("no memory");
}

static int read_text(FILE *file, const char *name, char **text)
{
    char *all = malloc(MAX_CHAIN + 1);
    const size_t n = all ? fread(all, 1, MAX_CHAIN + 1, file) : 0;
    int st = EXIT_FINE;
    if (!all)
        st = cli_error("no memory");
    else if (ferror(file))
        st = cli_error("%s: %s", name, strerror(errno));
    else if (n > MAX_CHAIN || memchr(all, 0, n))
        st = cli_error("%s is not chain text", name);
    if (st) {
        free(all);
        return st;
    }
    all[n] = 0;
    *text = all;
    return EXIT_FINE;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t a = strlen(text), b = strlen(end);
    return a >= b && !strcmp(text + a - b, end);
}

int chain_load(const char *argument, char **text)
{
    FILE *file;
    int st;

    *text = NULL;
    if (strchr("ABC", argument[0]) && argument[0] && !argument[1])
        return copy_text(chain_blocks[argument[0] - 'A'], text);
    if (!strcmp(argument, "-")) return read_text(stdin, "standard input", text);
    if (ends_with(argument, ".py"))
        return cli_error("%s is a Python problem file; bench and eject take it, in the Python package's convoy "
                         "(`pip install .` in Convoy's source folder)",
                         argument);
    if (strchr(argument, '[')) return copy_text(argument, text); /* every chain declares an input's extents */
    file = fopen(argument, "rb");
    if (!file)
        return cli_error(
            "'%s' is neither a chain (x[1,8,32,32] | conv2d(16,3) | relu), nor A, B or C, nor a file: %s", argument,
            strerror(errno));
    st = read_text(file, argument, text);
    fclose(file);
    return st;
}
