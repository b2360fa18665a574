/* test_alloc.c - every call of convoy.h with its first, second, third ... allocation failing, until it goes well.
 *
 * Each time: the status is CVY_NO_MEMORY, the message says so, the handles are as they were and the same call works
 * on them at once, and when everything is freed nothing is left. */
#include "../unit/unit.h"

/* One call under test. `setup` and `teardown` run with memory, `call` without. */
typedef struct fault_case {
    const char *name;
    const char *chain; /* setup parses it */
    cvy_status (*call)(struct fault_case *);
    int32_t device;
    cvy_graph *graph;
    cvy_plan *plan;
    cvy_value value;
    char printed[1024];
} fault_case;

static void setup(fault_case *c)
{
    if (c->chain) assert_ok(cvy_graph_parse(c->chain, &c->graph));
    if (c->graph) assert_ok(cvy_graph_print(c->graph, c->printed, sizeof c->printed, NULL));
}

static void teardown(fault_case *c)
{
    cvy_plan_free(c->plan);
    cvy_graph_free(c->graph);
    c->plan = NULL;
    c->graph = NULL;
}

/* What a failed call has left of the graph: all that was there, and no more. */
static void check_graph_untouched(const fault_case *c)
{
    char after[sizeof c->printed];
    if (!c->chain) {
        assert_null(c->graph);
        return;
    }
    assert_ok(cvyi_graph_verify(c->graph));
    assert_ok(cvy_graph_print(c->graph, after, sizeof after, NULL));
    assert_string_equal(c->printed, after);
}

/* Returns how many allocations the call makes. */
static int run_case(fault_case *c)
{
    const int64_t live = cvyi_alloc_live();
    cvy_status st = CVY_NO_MEMORY;
    int n = 0;

    for (; st; n++) {
        setup(c);
        cvyi_alloc_fail_after(n);
        st = c->call(c);
        cvyi_alloc_fail_after(-1);
        if (st) {
            if (st != CVY_NO_MEMORY)
                fail_msg("%s: allocation %d: %s: %s", c->name, n, cvy_status_name(st), cvy_last_error());
            assert_non_null(strstr(cvy_last_error(), "out of memory"));
            check_graph_untouched(c);
            assert_ok(c->call(c));
        }
        teardown(c);
        if (cvyi_alloc_live() != live)
            fail_msg("%s: allocation %d: %d are left", c->name, n, (int)(cvyi_alloc_live() - live));
    }
    return n - 1;
}

/* ---- the calls ---- */

static cvy_status call_create(fault_case *c)
{
    return cvy_graph_create(&c->graph);
}

static cvy_status call_input(fault_case *c)
{
    return cvy_graph_input(c->graph, "another", CVY_FLOAT32, 2, (int64_t[]){2, 3}, &c->value);
}

static cvy_status call_param(fault_case *c)
{
    return cvy_graph_param(c->graph, "another", CVY_FLOAT32, 2, (int64_t[]){2, 3}, &c->value);
}

static cvy_status call_apply(fault_case *c)
{
    const cvy_attr attrs[] = {{.name = "out_channels", .count = 1, .value = {4}},
                              {.name = "kernel_size", .count = 1, .value = {3}}};
    const cvy_call call = {
        .size = sizeof call, .op = "conv2d", .args = &(cvy_value){0}, .n_args = 1, .attrs = attrs, .n_attrs = 2};
    return cvy_graph_apply(c->graph, &call, &c->value);
}

static cvy_status call_chain(fault_case *c)
{
    return cvy_graph_chain(
        c->graph, 0, "conv2d(4,3) @c | batch_norm | mul(s[4,1,1]) | param(p[2]) | add(@c) | relu | output(@c)",
        &c->value);
}

static cvy_status call_output(fault_case *c)
{
    return cvy_graph_output(c->graph, 1);
}

static cvy_status call_print(fault_case *c)
{
    char memory[64];
    return cvy_graph_print(c->graph, memory, sizeof memory, NULL);
}

static cvy_status call_copy(fault_case *c)
{
    cvy_graph *copy = NULL;
    const cvy_status st = cvyi_graph_copy(c->graph, &copy);
    cvy_graph_free(copy);
    return st;
}

static cvy_status call_plan(fault_case *c)
{
    const cvy_options options = {.size = sizeof options, .device = c->device, .threads = 1};
    return cvy_plan_create(c->graph, &options, &c->plan);
}

static cvy_status call_plan_print(fault_case *c)
{
    return cvy_plan_print(c->plan, NULL, 0, NULL);
}

/* ---- graphs ---- */

static void graph_calls(void **state)
{
    static const char small[] = "x[1,2,5,5] | relu", empty[] = "x[1,2,5,5]";
    fault_case cases[] = {
        {.name = "create", .call = call_create},
        {.name = "input", .chain = small, .call = call_input},
        {.name = "param", .chain = small, .call = call_param},
        {.name = "apply", .chain = small, .call = call_apply},
        {.name = "first apply", .chain = empty, .call = call_apply},
        {.name = "chain", .chain = small, .call = call_chain},
        {.name = "output", .chain = small, .call = call_output},
        {.name = "print", .chain = small, .call = call_print},
        {.name = "copy", .chain = small, .call = call_copy},
    };
    (void)state;
    for (int i = 0; i < COUNT_OF(cases); i++) assert_true(run_case(&cases[i]) > 0);
}

static const char *parsed;

static cvy_status call_parse(fault_case *c)
{
    return cvy_graph_parse(parsed, &c->graph);
}

static const char *const chains[] = {
    "x[2,8,9,9] | conv2d(16,3) | group_norm(4) | mul(scale[16,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[2,8,9,9] | conv2d(16,3) @c | group_norm(4) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[2,8,9,9] | conv2d(8,3) | add(bias[8,1,1]) | mul(scale[8,1,1]) | sigmoid | group_norm(2)",
    "x[2,6,9] | conv1d(4,3,2,1,1,2) | batch_norm(True) | avg_pool1d(2) | gelu('tanh')",
    "x[2,6,4,5,4] | conv3d(4,2) | batch_norm | relu | adaptive_avg_pool3d(1) | flatten(1) | linear(3)",
    "x[1,4,5,5] | conv_transpose2d(6,(3,2),stride=2) | instance_norm(affine=True) | elu(0.5) | mean((2,3))",
    "x[2,3,4], y[4] | layer_norm((3,4)) | rms_norm(4) | add(@y) | matmul(w[4,2]) | softmax(-1) | sum | exp",
    "x[2,3] | relu @a | exp @b | sub(@a) | reshape(3,2) | squeeze | output(@b, @reshape)",
};

static void parsing(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(chains); i++) {
        fault_case c = {.name = chains[i], .call = call_parse};
        parsed = chains[i];
        assert_true(run_case(&c) > 5);
    }
}

/* Calls that allocate nothing go well without memory. */
static void calls_without_memory(void **state)
{
    cvy_graph *g = NULL;
    int64_t dims[CVY_MAX_RANK];
    int32_t rank;
    cvy_tensor t;
    (void)state;
    assert_ok(cvy_graph_parse("x[2,3] | linear(4)", &g));
    cvyi_alloc_fail_after(0);
    assert_ok(cvy_graph_shape(g, 0, &rank, dims));
    assert_int_equal(cvy_graph_tensors(g), 4);
    assert_ok(cvy_graph_tensor(g, 3, &t));
    assert_non_null(cvy_op_signature(0));
    assert_non_null(cvy_version());
    assert_int_equal(cvy_graph_parse("x[2,3] | linear(4)", &(cvy_graph *){NULL}),
                     CVY_NO_MEMORY); /* it was still set */
    cvyi_alloc_fail_after(-1);
    cvy_graph_free(g);
}

/* ---- plans ---- */

/* Whether the device is there. What a process makes once and keeps (threads, what it knows of the machine) is made
 * here, before anything is counted. */
static bool has_device(int32_t device)
{
    fault_case c = {.chain = "x[2,3] | relu", .device = device};
    cvy_status st;
    setup(&c);
    st = call_plan(&c);
    if (st != CVY_NO_DEVICE) assert_ok(st);
    teardown(&c);
    return st == CVY_OK;
}

static void plan_on(int32_t device)
{
    if (!has_device(device)) skip();
    for (int i = 0; i < COUNT_OF(chains); i++) {
        fault_case c = {.name = chains[i], .chain = chains[i], .call = call_plan, .device = device};
        assert_true(run_case(&c) > 5);
    }
}

static void plans_on_reference(void **state)
{
    (void)state;
    plan_on(CVY_REF);
}

static void plans_on_cpu(void **state)
{
    (void)state;
    plan_on(CVY_CPU);
}

/* Where there is no GPU, memory may run out before that is known or not; nothing is left in either case. */
static void plans_on_gpu(void **state)
{
    static const int32_t devices[] = {CVY_CUDA, CVY_AUTO};
    (void)state;
    has_device(CVY_AUTO);
    for (int i = 0; i < COUNT_OF(devices); i++) {
        const int64_t live = cvyi_alloc_live();
        for (int n = 0; n < 300; n++) {
            fault_case c = {.chain = chains[1], .device = devices[i]};
            setup(&c);
            cvyi_alloc_fail_after(n);
            if (call_plan(&c)) assert_null(c.plan);
            cvyi_alloc_fail_after(-1);
            check_graph_untouched(&c);
            teardown(&c);
            assert_int_equal(cvyi_alloc_live(), live);
        }
    }
}

static void plan_printing(void **state)
{
    (void)state;
    for (int device = CVY_REF; device <= CVY_CPU; device++) {
        fault_case c = {.chain = chains[1], .device = device};
        cvy_status st = CVY_NO_MEMORY;
        int64_t live;
        if (!has_device(device)) continue;
        setup(&c);
        assert_ok(call_plan(&c));
        live = cvyi_alloc_live();
        for (int n = 0; st; n++) {
            cvyi_alloc_fail_after(n);
            st = call_plan_print(&c);
            cvyi_alloc_fail_after(-1);
            if (st) assert_int_equal(st, CVY_NO_MEMORY);
            assert_int_equal(cvyi_alloc_live(), live);
        }
        teardown(&c);
    }
}

/* run() allocates nothing: it goes well though the next allocation would fail. */
static void running(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * COUNT_OF(chains); i++) {
        fault_case c = {.chain = chains[i / 2], .device = i % 2 ? CVY_CPU : CVY_REF};
        cvy_buffer buffers[16] = {{NULL, NULL}};
        cvy_cost cost;
        void *work;
        int n;
        if (!has_device(c.device)) continue;
        setup(&c);
        assert_ok(call_plan(&c));
        n = cvy_graph_tensors(c.graph);
        assert_true(n <= COUNT_OF(buffers));
        work = aligned_alloc(CVY_ALIGN, cvy_plan_workspace(c.plan));
        for (int k = 0; k < n; k++) {
            cvy_tensor t;
            size_t count = 1;
            assert_ok(cvy_graph_tensor(c.graph, k, &t));
            for (int d = 0; d < t.rank; d++) count *= (size_t)t.dims[d];
            buffers[k].data = calloc(count + 1, sizeof(float));
        }
        cvyi_alloc_fail_after(0);
        assert_ok(cvy_plan_cost(c.plan, &cost));
        assert_ok(cvy_plan_run(c.plan, buffers, n, work, cvy_plan_workspace(c.plan), 0, NULL));
        assert_ok(cvy_plan_run(c.plan, buffers, n, work, cvy_plan_workspace(c.plan), CVY_KEEP_PREPARED, NULL));
        cvyi_alloc_fail_after(-1);
        for (int k = 0; k < n; k++) free(buffers[k].data);
        free(work);
        teardown(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_calls),          cmocka_unit_test(parsing),
        cmocka_unit_test(calls_without_memory), cmocka_unit_test(plans_on_reference),
        cmocka_unit_test(plans_on_cpu),         cmocka_unit_test(plans_on_gpu),
        cmocka_unit_test(plan_printing),        cmocka_unit_test(running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
