/* check_random.c - see check_random.h. */
#include "check_random.h"

/* What a report calls a graph: its text, and what makes it again. */
static char *random_title(const cvy_graph *g, flavour f, uint64_t seed)
{
    size_t needed = 0;
    char *words;

    cvy_graph_print(g, NULL, 0, &needed);
    words = malloc(needed + 80);
    assert_non_null(words);
    cvy_graph_print(g, words, needed, NULL);
    snprintf(words + strlen(words), 80, "\n    (graph %llu of flavour %d)", (unsigned long long)seed, (int)f);
    return words;
}

bool check_random(const gpu *u, cvy_dtype dtype, flavour f, uint64_t seed, int kinds)
{
    cvy_graph *made = make_graph(f, seed), *g = graph_as(made, dtype, seed % 3 != 0);
    checked_graph c;
    bool good = true;

    if (dtype != CVY_FLOAT32) mix_dtypes(g, dtype, seed);
    if (g->n_nodes && cvy_graph_tensors(g) <= RIG_TENSORS) {
        char *title = random_title(g, f, seed);
        check_open(&c, u, g, f == EXACT ? RIG_WHOLE : RIG_REAL, seed * 77 + 13);
        c.title = title;
        good = check_plans(&c, CVY_FP32, kinds & ~PLAN_RANDOM, (uint32_t)seed) &&
               check_plans(&c, seed % 2 ? CVY_TF32 : CVY_FP32, kinds & PLAN_RANDOM, (uint32_t)seed);
        check_close(&c);
        free(title);
    }
    cvy_graph_free(g);
    cvy_graph_free(made);
    return good;
}
