/* test_cuda_product.c - matrix products through wgmma, without a GPU: which are taken, with which tile and in which
 * clusters, and the words where they are not; what the steps launch. What they compute is test/gpu's. */
#include "../support/fixture.h"
#include "../../src/cuda/choice.h"
#include "../support/kernel_list.h"

static standin *gpu;

static cvy_plan *plan_of(const char *chain, cvy_precision precision)
{
    return chain_plan(chain, precision, 0);
}

static void refusals_are_in_words(void)
{
    static const struct {
        const char *chain, *why;
        int capability;
    } cases[] = {
        {"x[20,64] | relu", "not a matrix product", 90},
        {"x[20,64] | linear(64)", "9.x", 80},
        {"x[20,64] | linear(64)", "9.x", 100},
        {"x[20,30] | linear(64)", "16 bytes", 90},
        {"x[20,28] | linear(64)", "32 terms", 90},
        {"x[20,64] | linear(7)", "8 columns", 90},
        {"x[64] | linear(70)", "one row", 90},
        {"x[4,20,64] | matmul(w[4,64,30])", "each sample", 90},
        {"x[64,64] | sigmoid @a | matmul(w[64,64]) | matmul(@a)", "parameter", 90},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        gpu->capability = cases[i].capability;
        cvy_plan *p = plan_of(cases[i].chain, CVY_FP32);
        if (!p) continue;
        const pass *last = &p->passes[p->n_passes - 1];
        cuda_choice c;
        const char *why = ask_row(p, last, &cvyi_kernel_matmul_tc, &c);
        CHECK(why && strstr(why, cases[i].why), "%s: \"%s\", not \"%s\"", cases[i].chain, why ? why : "(taken)",
              cases[i].why);
        CHECK(cvyi_cuda_choice(last)->kernel != &cvyi_kernel_matmul_tc, "%s: %s", cases[i].chain, last->note);
        cvy_plan_free(p);
    }
    gpu->capability = 0;
}

/* A grid of whole clusters that has every row and column; weights packed once, with the same tile. */
static void check_steps(const cvy_plan *p, const char *chain, const product_choice *f, const matmul_geom *e)
{
    const cuda_step *s = step_of(p, "matmul_tc.cu"), *pack = step_of(p, "matmul_tc_pack.cu");
    const wgmma_tile *t = &f->tile;
    char columns[32], products[32];

    CHECK(s && pack, "%s: no such steps", chain);
    if (!s || !pack) return;
    const cuda_launch *l = &s->launch;
    CHECK(s->tc && s->tc->product && !s->epilogue[1] && !s->prepared && pack->prepared && !pack->tc, "%s: steps",
          chain);
    CHECK(l->grid[0] % t->cluster_n == 0 && l->grid[1] % t->cluster_m == 0, "%s: %u x %u blocks", chain, l->grid[0],
          l->grid[1]);
    CHECK((int64_t)l->grid[0] * t->n >= e->N && (int64_t)l->grid[1] * l->grid[2] * t->m >= e->M, "%s: %u x %u x %u",
          chain, l->grid[0], l->grid[1], l->grid[2]);
    CHECK(l->grid[1] <= 65535 && (int)l->block[0] == t->threads && l->dynamic_shared <= 227 * 1024, "%s", chain);
    CHECK(s->tc->dims[0] == (uint64_t)e->K && s->tc->dims[1] == (uint64_t)e->M && s->tc->box[0] == 32 &&
              (int)s->tc->box[1] * t->cluster_n == t->m,
          "%s: tensor map", chain);
    CHECK(pack->extent == (int64_t)l->grid[0] &&
              t->packed_bytes == 4 * pack->extent * t->n * 32 * t->steps * (t->products == 3 ? 2 : 1),
          "%s: packed", chain);
    snprintf(columns, sizeof columns, "-DBN=%d", t->n);
    snprintf(products, sizeof products, "-DPRODUCTS=%d", t->products);
    CHECK(has_option(s, columns) && has_option(pack, columns) && has_option(s, products) &&
              has_option(pack, products) && has_option(s, "-DPACKED=3"),
          "%s: options", chain);
}

static void layers_are_taken(void)
{
    static const char *const all[] = {
        "x[512,256] | linear(1024)",
        "x[1024,256] | linear(512) | gelu",
        "x[9,1024] | linear(1000) | relu",
        "x[77,132] | linear(52)",
        "x[3,100,1024] | linear(36) | add(r[3,100,36])",
        "x[8,512,512] | matmul(w[512,512]) | silu",
        "x[9000000,48] | linear(256)",
    };
    for (int i = 0; i < 2 * COUNT_OF(all); i++) {
        const char *chain = all[i / 2];
        cvy_plan *p = plan_of(chain, i % 2 ? CVY_TF32 : CVY_FP32);
        if (!p) continue;
        const pass *last = &p->passes[p->n_passes - 1];
        const product_choice f = cvyi_cuda_choice(last)->product;
        matmul_geom e;
        cvyi_matmul_geom(p->graph, &p->graph->nodes[last->first], &e);
        CHECK(!f.why && f.tile.products == (i % 2 ? 1 : 3), "%s: %s", chain, f.why ? f.why : "products");
        CHECK(cvyi_cuda_choice(last)->kernel == &cvyi_kernel_matmul_tc, "%s: %s", chain, last->note);
        if (cvyi_cuda_choice(last)->kernel == &cvyi_kernel_matmul_tc) check_steps(p, chain, &f, &e);
        cvy_plan_free(p);
    }
}

/* Tunings ask for the next best tiles, each believed to be no faster than the one before; the last uses no tensor
 * cores. */
static void tunings_rank_tiles(void)
{
    cvy_plan *p = plan_of("x[2048,1024] | linear(1024)", CVY_TF32);
    double before = 0;

    if (!p) return;
    const pass *last = &p->passes[p->n_passes - 1];
    cuda_choice c;
    for (p->tuning = 0; p->tuning < TUNE_TILES; p->tuning++) {
        const char *why = ask_row(p, last, &cvyi_kernel_matmul_tc, &c);
        const double seconds = c.product.seconds;
        CHECK(!why && seconds >= before && seconds > 8e-6 && seconds < 60e-6, "%d: %g s", p->tuning, seconds);
        before = seconds;
    }
    p->tuning = TUNE_GENERIC;
    CHECK(ask_row(p, last, &cvyi_kernel_matmul_tc, &c), "tensor cores where there should be none");
    p->tuning = 0;
    cvy_plan_free(p);
}

/* A new batch compiles nothing: the rows stand in no option where the tile is the same. */
static void batches_share_code(void)
{
    cvy_plan *one = plan_of("x[2048,1024] | linear(1024)", CVY_TF32),
             *two = plan_of("x[2000,1024] | linear(1024)", CVY_TF32);
    const cuda_step *a = one ? step_of(one, "matmul_tc.cu") : NULL, *b = two ? step_of(two, "matmul_tc.cu") : NULL;

    CHECK(a && b && strcmp(a->entry, b->entry) == 0, "%s and %s", a ? a->entry : "none", b ? b->entry : "none");
    cvy_plan_free(one);
    cvy_plan_free(two);
}

/* ---- words of 16 bits: matmul_wide.cu ---- */

static void words_refuse_in_words(void)
{
    static const struct {
        const char *chain, *why;
        int capability;
    } cases[] = {
        {"x[20,64] | linear(64)", "9.0", 80},
        {"x[64] | linear(70)", "a vector", 90},
        {"x[20,64] | matmul(w[64])", "a vector", 90},
        {"x[20,63] | linear(64)", "64 terms", 90},
        {"x[20,64] | linear(7)", "8 columns", 90},
        {"x[2,1,20,64] | matmul(w[3,64,30])", "broadcast in part", 90},
        {"x[20,64]:bf16 | matmul(w[64,30]:fp32)", "two dtypes", 90},
        {"x[9,17000000] | linear(8)", "tensor copies can address", 90},
        {"x[8,128] | linear(64)", "few rows", 90},
        {"x[7,128]:bf16, y[128,64]:bf16 | matmul(@y)", "few rows", 90},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        gpu->capability = cases[i].capability;
        cvy_plan *p = plan_of(cases[i].chain, CVY_FP32);
        if (!p) continue;
        cuda_choice c;
        const char *why = ask_row(p, &p->passes[p->n_passes - 1], &cvyi_kernel_matmul_wide, &c);
        CHECK(why && strstr(why, cases[i].why), "%s: \"%s\", not \"%s\"", cases[i].chain, why ? why : "(taken)",
              cases[i].why);
        cvy_plan_free(p);
    }
    gpu->capability = 0;
}

/* What becomes words, once or in every run, and what is read where it lies. */
static void words_are_taken(void)
{
    static const struct {
        const char *chain;
        int steps; /* of matmul_wide_words.cu */
        bool across, prepared;
    } cases[] = {
        {"x[2048,1024] | linear(4096) | gelu", 2, false, true},
        {"x[2048,1024], y[1024,4096] | matmul(@y)", 2, false, false},
        {"x[4096,1024]:bf16 | linear(4096) | gelu", 0, false, true},
        {"x[4096,1024]:bf16, y[1024,4096]:bf16 | matmul(@y)", 0, true, false},
        {"x[4096,1020]:fp16, y[1020,4096]:fp16 | matmul(@y)", 1, true, false},
        {"x[8,512,1024]:bf16, y[8,1024,2044]:bf16 | matmul(@y)", 1, false, false},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        cvy_plan *p = plan_of(cases[i].chain, CVY_TF32);
        int steps = 0, prepared = 0;
        if (!p) continue;
        const cuda_state *state = p->state;
        const cuda_choice *c = cvyi_cuda_choice(&p->passes[p->n_passes - 1]);
        for (int k = 0; k < state->n_steps; k++) {
            const bool words = !strcmp(state->steps[k].source, "matmul_wide_words.cu");
            steps += words;
            prepared += words && state->steps[k].prepared;
        }
        CHECK(c->kernel == &cvyi_kernel_matmul_wide, "%s: %s", cases[i].chain, c->kernel->name);
        CHECK(steps == cases[i].steps && prepared == (steps && cases[i].prepared), "%s: %d and %d steps",
              cases[i].chain, steps, prepared);
        CHECK(c->word.across == cases[i].across, "%s: across", cases[i].chain);
        CHECK((state->shadow[0] >= 0) == !c->word.x.words, "%s: x is copied", cases[i].chain);
        cvy_plan_free(p);
    }
}

/* ---- few columns or rows: matmul_thin.cu ---- */

/* Lines of a block, and blocks that share the terms; an H200 has 132 multiprocessors. */
static void thin_products_fill_the_device(void)
{
    static const struct {
        const char *chain;
        int lines, split;
        bool across;
        const char *adds; /* the step after it */
    } cases[] = {
        {"x[4096,4096], y[4096,1] | matmul(@y)", 8, 1, false, NULL},
        {"x[4096,4096]:bf16, y[4096,1]:bf16 | matmul(@y)", 8, 1, false, NULL},
        {"x[1,8192]:bf16 | linear(8192)", 16, 1, true, NULL},
        {"x[4096,8192], y[8192,5] | matmul(@y)", 32, 5, false, "conv_wide_add.cu"},
        {"x[7,8192]:bf16, y[8192,8192]:bf16 | matmul(@y)", 128, 8, true, "conv_wide_add.cu"},
        {"x[1,500000], y[500000,1] | matmul(@y)", 1, 123, false, "reduce.cu"},
        {"x[1,500000]:bf16, y[500000,1]:bf16 | matmul(@y)", 1, 123, false, "reduce.cu"},
        {"x[64,1,4096], y[64,4096,1] | matmul(@y)", 1, 1, false, NULL},
        {"x[7,200] | linear(64)", 32, 1, true, NULL},
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        cvy_plan *p = plan_of(cases[i].chain, CVY_FP32);
        if (!p) continue;
        const cuda_choice *c = cvyi_cuda_choice(&p->passes[p->n_passes - 1]);
        const thin_choice *f = &c->thin;
        const cuda_step *s = step_of(p, "matmul_thin.cu");
        CHECK(c->kernel == &cvyi_kernel_matmul_thin && s, "%s: %s", cases[i].chain, c->kernel->name);
        CHECK(f->block_lines == cases[i].lines && f->split == cases[i].split && f->across == cases[i].across,
              "%s: %d lines, %d parts", cases[i].chain, f->block_lines, f->split);
        if (s)
            CHECK((int64_t)s->launch.grid[0] * f->block_lines >= f->lines && (int)s->launch.grid[1] == f->split,
                  "%s: %u x %u blocks", cases[i].chain, s->launch.grid[0], s->launch.grid[1]);
        CHECK(cases[i].adds ? step_of(p, cases[i].adds) != NULL : f->split == 1, "%s: parts", cases[i].chain);
        cvy_plan_free(p);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    gpu = use_standin(argv[0], "libcuda.so.1", "CVY_CUDA_LIB");
    use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    setenv("CVY_CACHE", "off", 1);
    refusals_are_in_words();
    layers_are_taken();
    tunings_rank_tiles();
    batches_share_code();
    words_refuse_in_words();
    words_are_taken();
    thin_products_fill_the_device();
    return finish("cuda_product");
}
