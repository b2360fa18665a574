/* fuzz_chain.c - libFuzzer target: any bytes as chain text.
 *
 * What parses must verify, print, read back into the same graph and print the same again; what does not parse gives
 * a message with a column. Nothing may be left allocated.
 *
 *     clang -fsanitize=fuzzer,address,undefined ... fuzz_chain.c -o fuzz_chain
 *     ./fuzz_chain -dict=test/fuzz/chain.dict -max_len=512 work/ test/fuzz/corpus_chain */
#include <stdlib.h>
#include <string.h>
#include "../unit/same.h"

enum { MAX_BYTES = 8192 };

static void demand(bool holds, const char *what, const char *source)
{
    if (holds) return;
    fprintf(stderr, "%s: %s\n%s\n", what, cvy_last_error(), source);
    abort();
}

static void check(const cvy_graph *g, const char *source)
{
    cvy_graph *back = NULL;
    text once = {0}, twice = {0};

    demand(cvyi_graph_verify(g) == CVY_OK, "verify", source);
    demand(cvyi_print_graph(g, &once) == CVY_OK, "print", source);
    demand(cvy_graph_parse(once.data, &back) == CVY_OK, "read back", once.data);
    demand(same_graph(g, back), "not the same graph", source);
    demand(cvyi_print_graph(back, &twice) == CVY_OK, "print again", once.data);
    demand(!strcmp(once.data, twice.data), "not the same text", once.data);
    cvyi_text_free(&once);
    cvyi_text_free(&twice);
    cvy_graph_free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char source[MAX_BYTES + 1];
    cvy_graph *g = NULL;

    if (size > MAX_BYTES) return 0;
    memcpy(source, data, size);
    source[size] = 0;
    if (cvy_graph_parse(source, &g) == CVY_OK)
        check(g, source);
    else
        demand(!strncmp(cvy_last_error(), "column ", 7), "no column", source);
    cvy_graph_free(g);
    demand(cvyi_alloc_live() == 0, "left allocated", source);
    return 0;
}
