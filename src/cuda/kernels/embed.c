/* embed.c - run while building: writes kernel sources as byte arrays, in the order given, into one C file.
 *
 *     embed OUT.c FILE...
 *
 * Arrays of numbers, not string literals: C11 promises no more than 4,095 characters for those. */
#include <stdio.h>
#include <string.h>

static int embed(FILE *out, const char *path, int number)
{
    FILE *in = fopen(path, "rb");
    int c, column = 0;

    if (!in) {
        perror(path);
        return 1;
    }
    fprintf(out, "static const char file_%d[] = {", number);
    while ((c = getc(in)) != EOF) fprintf(out, "%s%d,", column++ % 24 ? "" : "\n", c > 127 ? c - 256 : c);
    fprintf(out, "0};\n");
    return fclose(in) != 0;
}

int main(int argc, char **argv)
{
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    int bad = 0;

    if (!out) {
        fprintf(stderr, "embed: cannot write %s\n", argc > 1 ? argv[1] : "(no file named)");
        return 1;
    }
    fprintf(out, "/* Made by embed.c from the files of src/cuda/kernels. */\n#include \"jit.h\"\n\n");
    for (int i = 2; i < argc && !bad; i++) bad = embed(out, argv[i], i);
    fprintf(out, "\nconst jit_file cvyi_cuda_files[] = {\n");
    for (int i = 2; i < argc; i++) {
        const char *slash = strrchr(argv[i], '/');
        fprintf(out, "    {\"%s\", file_%d},\n", slash ? slash + 1 : argv[i], i);
    }
    fprintf(out, "    {0, 0}};\n");
    return fclose(out) != 0 || bad;
}
