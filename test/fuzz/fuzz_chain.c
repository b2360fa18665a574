/* fuzz_chain.c - libFuzzer target: any bytes as chain text.
 *
 * What parses must verify, print, read back into the same graph and print the same again; small graphs run on the
 * reference, under the sanitizers. Nothing may be left allocated.
 *
 *     clang -fsanitize=fuzzer,address,undefined ... fuzz_chain.c -o fuzz_chain
 *     ./fuzz_chain -dict=test/fuzz/chain.dict -max_len=512 work/ test/fuzz/corpus_chain */
#include <stdlib.h>
#include <string.h>
#include "../unit/same.h"
#include "../../src/ref/ref.h"

enum { MAX_BYTES = 8192, MAX_ELEMENTS = 2000, MAX_FLOPS = 20000 };

static void demand(bool holds, const char *what, const char *source)
{
    if (holds) return;
    fprintf(stderr, "%s: %s\n%s\n", what, cvy_last_error(), source);
    abort();
}

static bool is_small(const cvy_graph *g)
{
    int64_t elements = 0;
    double flops = 0;
    for (int i = 0; i < g->n_values; i++) {
        const int64_t n = cvyi_elements(&g->values[i].shape);
        if (n > MAX_ELEMENTS) return false;
        elements += n;
    }
    for (int i = 0; i < g->n_nodes; i++) flops += cvyi_node_flops(g, &g->nodes[i]);
    return elements <= MAX_ELEMENTS && flops <= MAX_FLOPS && g->n_nodes > 0;
}

/* Each tensor in memory of exactly its size, so that a step outside is seen. */
static void run_on_reference(const cvy_graph *g, const char *source)
{
    const int n = cvy_graph_tensors(g);
    cvy_buffer *buffers = calloc((size_t)n, sizeof *buffers);
    size_t bytes = 0;
    void *work = NULL;

    demand(cvyi_ref_workspace(g, &bytes) == CVY_OK, "workspace", source);
    work = aligned_alloc(CVY_ALIGN, bytes);
    for (int i = 0; i < n; i++) {
        cvy_tensor t;
        int64_t count = 1;
        demand(cvy_graph_tensor(g, i, &t) == CVY_OK, "tensor", source);
        for (int k = 0; k < t.rank; k++) count *= t.dims[k];
        buffers[i].data = malloc((size_t)count * sizeof(float));
        for (int64_t k = 0; k < count; k++) ((float *)buffers[i].data)[k] = (float)(k % 7) - 3;
    }
    demand(cvyi_ref_run(g, buffers, n, work) == CVY_OK, "run", source);
    for (int i = 0; i < n; i++) free(buffers[i].data);
    free(buffers);
    free(work);
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
    if (is_small(g)) run_on_reference(g, source);
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
