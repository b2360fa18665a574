/* test_strided.c - tensors that lie in any order: the kernels that exchange rows and columns, and plans whose
 * tensors are large enough for many blocks of them. Nothing is computed inexactly, so results are equal. */
#include "../../src/cpu/convert.h"
#include "../../src/cpu/cpuinfo.h"
#include "../../src/util/half.h"
#include "../support/rig.h"

enum { MOST = 37, PITCH = MOST + 3, CELLS = MOST * PITCH };

/* Cells of a dtype, numbers that all of them hold. */
typedef struct cells {
    cvy_dtype dtype;
    float floats[CELLS];
    uint16_t words[CELLS];
} cells;

static void set(cells *c, int64_t i, float x)
{
    if (c->dtype == CVY_FLOAT32)
        c->floats[i] = x;
    else
        c->words[i] = cvyi_narrow(c->dtype, x);
}
static float get(const cells *c, int64_t i)
{
    return c->dtype == CVY_FLOAT32 ? c->floats[i] : cvyi_widen(c->dtype, c->words[i]);
}
static void *memory_of(cells *c)
{
    return c->dtype == CVY_FLOAT32 ? (void *)c->floats : (void *)c->words;
}

/* The elements of the matrix, and no others. */
static void check_turn(cpu_turn_fn *turn, cells *from, cells *to, int64_t rows, int64_t columns)
{
    const int64_t pitch = rows + (rows + columns) % 4, wide = columns + rows % 3;
    for (int64_t i = 0; i < CELLS; i++) set(from, i, (float)(i % 251)), set(to, i, -1);
    turn(memory_of(to), wide, memory_of(from), pitch, rows, columns);
    for (int64_t i = 0; i < CELLS; i++) {
        const int64_t row = wide ? i / wide : 0, column = wide ? i % wide : 0;
        const bool inside = row < rows && column < columns;
        const float want = inside ? (float)((column * pitch + row) % 251) : -1;
        if (get(to, i) != want)
            fail_msg("%lld x %lld, cell %lld: %g, not %g", (long long)rows, (long long)columns, (long long)i,
                     (double)get(to, i), (double)want);
    }
}

static void every_size(void **state)
{
    static const cpu_turn_kernels *const kernels[] = CPU_KERNELS(cvyi_turn);
    static cells floats, elements;
    (void)state;
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
            for (int64_t rows = 0; rows <= MOST; rows++)
                for (int64_t columns = 0; columns <= MOST; columns++) {
                    elements.dtype = (cvy_dtype)dtype;
                    check_turn(kernels[isa]->in[dtype], &elements, &floats, rows, columns);
                    check_turn(kernels[isa]->out[dtype], &floats, &elements, rows, columns);
                }
    }
}

/* ---- plans ---- */

/* A step's own scattering, kernels that read and write floats, shadows on both sides, units of many samples and of
 * one. */
static const char *const chains[] = {
    "x[3,70,41,47] | neg",
    "x[3,70,41,47]:bf16 | neg",
    "x[2,600,90] | relu",
    "x[700,900] | abs",
    "x[2,33,3,5,7,11] | neg",
    "x[65,3,50,50] | max_pool2d(2)",
    "x[2,40,50,50]:fp16 | max_pool2d(2) | neg",
    "x[2,3,64,600] | permute(0,3,1,2) | neg",
    "x[90,600], y[600,70] | matmul(@y)",
    "x[2,8,40,70] | conv2d(40,1,bias=False) | relu",
};

static void any_order(void **state)
{
    enum { SEEDS = 6 };
    (void)state;
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const cvy_options options = {.size = sizeof options, .device = CVY_CPU, .threads = 1 + (int)seed % 3};
            uint64_t random = seed * 7919 + i;
            cvy_graph *g = NULL;
            cvy_plan *p = NULL;
            float *got;
            int64_t n, at = 0;
            rig r;

            assert_ok(cvy_graph_parse(chains[i], &g));
            rig_open(&r, g, &random, RIG_WHOLE, 8);
            rig_reference(&r);
            assert_ok(cvy_plan_create(g, &options, &p));
            got = rig_run(&r, p, &n);
            if (!got) fail_msg("%s, seed %d: a guard was hit", chains[i], (int)seed);
            for (int t = r.n_sources; t < r.n; t++)
                for (int64_t k = 0; k < r.t[t].count; k++, at++)
                    if ((double)got[at] != r.t[t].want[k])
                        fail_msg("%s, seed %d, element %lld: %g, not %g", chains[i], (int)seed, (long long)k,
                                 (double)got[at], r.t[t].want[k]);
            free(got);
            rig_close(&r);
            cvy_plan_free(p);
            cvy_graph_free(g);
        }
}

static void any_order_every_set(void **state)
{
    for (int isa = 0; isa < CPU_ISA_COUNT; isa++) {
        if (!cvyi_isa_supported((cpu_isa)isa)) continue;
        setenv("CVY_ISA", cvyi_isa_name((cpu_isa)isa), 1);
        any_order(state);
        unsetenv("CVY_ISA");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size),
        cmocka_unit_test(any_order_every_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
