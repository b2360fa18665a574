/* test_cuda_emit.c - the generated text, word for word: what it says is what kernels compute, and it is part of the
 * compile cache's key. And that every pointwise operator has a device version. */
#include "../support/fixture.h"
#include "../../src/cuda/emit.h"

static void expect(const char *what, const emit_spec *spec, const char *golden)
{
    text t = {0};

    cvyi_emit(spec, &t);
    CHECK(t.data && strcmp(t.data, golden) == 0, "%s\n---- got\n%s---- expected\n%s", what, t.data ? t.data : "",
          golden);
    cvyi_text_free(&t);
}

/* conv2d | + bias | norm_apply | clamp, all of a [N,64,126,126] result; views as the convolution has them. */
static const emit_view conv_views[] = {
    {.name = "y[2,64,126,126]",
     .stride = {1016064, 15876, 0, 126, 1},
     .varies = {true, true, false, true, true},
     .whole = true},
    {.name = "x[2,8,128,128]"},
    {.name = "packed weights"},
    {.name = "bias[64]", .stride = {0, 1}, .varies = {false, true}},
    {.name = "stats[2,16,3]"},
    {.name = "residual[126,1]", .stride = {0, 0, 0, 1}, .varies = {false, false, false, true}},
};

static emit_statement conv_statements[] = {
    {.kind = EMIT_LOAD, .view = 3, .note = "bias"},
    {.kind = EMIT_OP, .op = OP_add, .a = EMIT_ARGUMENT, .b = 0, .p = {0, 1}, .note = "bias"},
    {.kind = EMIT_APPLY,
     .a = 1,
     .view = 4,
     .weight = 3,
     .bias = CVY_NONE,
     .norm = {.outer = 2, .groups = 16, .chan = 4, .inner = 15876},
     .note = "norm"},
    {.kind = EMIT_OP, .op = OP_clamp, .a = 2, .b = CVY_NONE, .p = {0, 1.0 / 0.0}, .note = "clamp"},
    {.kind = EMIT_LOAD, .view = 5, .note = "residual"},
    {.kind = EMIT_OP, .op = OP_sub, .a = 3, .b = 4, .p = {0, 0.1}, .note = "sub"},
    {.kind = EMIT_STORE, .view = 0, .a = 5, .note = "y"},
};

static void epilogues(void)
{
    const emit_program post = {.statements = conv_statements,
                               .n_statements = COUNT_OF(conv_statements),
                               .extent = {2, 64, 1, 126, 126, 1}};
    emit_spec spec = {
        .title = "conv_direct.cu", .views = conv_views, .n_views = COUNT_OF(conv_views), .epilogue = &post};

    expect("contiguous", &spec,
           "// epilogue.cuh - conv_direct.cu\n"
           "//\n"
           "//   t[0]  y[2,64,126,126]\n"
           "//   t[1]  x[2,8,128,128]\n"
           "//   t[2]  packed weights\n"
           "//   t[3]  bias[64]\n"
           "//   t[4]  stats[2,16,3]\n"
           "//   t[5]  residual[126,1]\n"
           "#include \"common.cuh\"\n"
           "#include \"ops.cuh\"\n"
           "\n"
           "CVY_INLINE void cvy_epilogue(const cvy_args &a, const cvy_at at, const float t0)\n"
           "{\n"
           "    const float t1 = a.t[3].p[at.i1]; // bias\n"
           "    const float t2 = cvy_add(t0, t1); // bias\n"
           "    const float t3 = cvy_affine(cvy_norm_apply(t2, a.t[4].p, at.i0 * 16 + at.i1 / 4), a.t[3].p[at.i1], "
           "0.0f); // norm\n"
           "    const float t4 = cvy_clamp(t3, 0.0f, CVY_INF); // clamp\n"
           "    const float t5 = a.t[5].p[at.i3]; // residual\n"
           "    const float t6 = cvy_sub_scaled(t4, t5, 0.100000001f); // sub\n"
           "    a.t[0].p[at.lin] = t6; // y\n"
           "}\n");
    spec.strided = true;
    spec.n_views = 0; /* their comments were shown above */
    expect("strided", &spec,
           "// epilogue.cuh - conv_direct.cu\n"
           "//\n"
           "#include \"common.cuh\"\n"
           "#include \"ops.cuh\"\n"
           "\n"
           "CVY_INLINE void cvy_epilogue(const cvy_args &a, const cvy_at at, const float t0)\n"
           "{\n"
           "    const float t1 = a.t[3].p[at.i1 * cvy_stride(a.t[3], 1)]; // bias\n"
           "    const float t2 = cvy_add(t0, t1); // bias\n"
           "    const float t3 = cvy_affine(cvy_norm_apply(t2, a.t[4].p, at.i0 * 16 + at.i1 / 4), a.t[3].p[at.i1 * "
           "cvy_stride(a.t[3], 1)], 0.0f); // norm\n"
           "    const float t4 = cvy_clamp(t3, 0.0f, CVY_INF); // clamp\n"
           "    const float t5 = a.t[5].p[at.i3 * cvy_stride(a.t[5], 3)]; // residual\n"
           "    const float t6 = cvy_sub_scaled(t4, t5, 0.100000001f); // sub\n"
           "    a.t[0].p[at.i0 * cvy_stride(a.t[0], 0) + at.i1 * cvy_stride(a.t[0], 1) + at.i3 * "
           "cvy_stride(a.t[0], 3) + at.i4 * cvy_stride(a.t[0], 4)] = t6; // y\n"
           "}\n");
}

/* Elements of 16 bits are widened where they are read and rounded where they are stored; float32 beside them is as
 * ever. */
static void halves(void)
{
    static const emit_view views[] = {
        {.name = "y", .stride = {30, 1}, .varies = {true, true}, .whole = true, .dtype = CVY_FLOAT16},
        {.name = "x", .stride = {30, 1}, .varies = {true, true}, .whole = true, .dtype = CVY_BFLOAT16},
        {.name = "column", .stride = {1}, .varies = {true}, .dtype = CVY_BFLOAT16},
        {.name = "bias", .stride = {0, 1}, .varies = {false, true}},
    };
    static emit_statement statements[] = {
        {.kind = EMIT_LOAD, .view = 1, .note = "x"},
        {.kind = EMIT_LOAD, .view = 2, .note = "column"},
        {.kind = EMIT_OP, .op = OP_mul, .a = 0, .b = 1, .p = {0, 1}, .note = "mul"},
        {.kind = EMIT_LOAD, .view = 3, .note = "bias"},
        {.kind = EMIT_OP, .op = OP_add, .a = 2, .b = 3, .p = {0, 1}, .note = "add"},
        {.kind = EMIT_STORE, .view = 0, .a = 4, .note = "y"},
    };
    const emit_program post = {
        .statements = statements, .n_statements = COUNT_OF(statements), .extent = {4, 28, 1, 1, 1, 1}};
    emit_spec spec = {.title = "pool.cu", .views = views, .epilogue = &post};

    expect("of 16 bits", &spec,
           "// epilogue.cuh - pool.cu\n"
           "//\n"
           "#include \"common.cuh\"\n"
           "#include \"ops.cuh\"\n"
           "\n"
           "CVY_INLINE void cvy_epilogue(const cvy_args &a, const cvy_at at, const float t0)\n"
           "{\n"
           "    const float t1 = cvy_widen(cvy_as<cvy_bf16>(a.t[1])[at.lin]); // x\n"
           "    const float t2 = cvy_widen(cvy_as<cvy_bf16>(a.t[2])[at.i0]); // column\n"
           "    const float t3 = cvy_mul(t1, t2); // mul\n"
           "    const float t4 = a.t[3].p[at.i1]; // bias\n"
           "    const float t5 = cvy_add(t3, t4); // add\n"
           "    cvy_put(cvy_as<cvy_f16>(a.t[0])[at.lin], t5); // y\n"
           "}\n");
    spec.many = 4;
    expect("neighbours of 16 bits", &spec,
           "// epilogue.cuh - pool.cu\n"
           "//\n"
           "#include \"common.cuh\"\n"
           "#include \"ops.cuh\"\n"
           "\n"
           "template <int N> CVY_INLINE void cvy_write(const cvy_args &a, const cvy_at (&all)[N], const float "
           "(&x)[N])\n"
           "{\n"
           "    const cvy_at &at = all[0];\n"
           "    float r1[N];\n"
           "    cvy_load(&cvy_as<cvy_bf16>(a.t[1])[at.lin], r1);\n"
           "    const float r2 = cvy_widen(cvy_as<cvy_bf16>(a.t[2])[at.i0]);\n"
           "    float r3[N];\n"
           "    cvy_load(&a.t[3].p[at.i1], r3);\n"
           "    float w0[N];\n"
           "#pragma unroll\n"
           "    for (int i = 0; i < N; i++) {\n"
           "        const cvy_at &at = all[i];\n"
           "        const float t0 = x[i];\n"
           "        const float t1 = r1[i]; // x\n"
           "        const float t2 = r2; // column\n"
           "        const float t3 = cvy_mul(t1, t2); // mul\n"
           "        const float t4 = r3[i]; // bias\n"
           "        const float t5 = cvy_add(t3, t4); // add\n"
           "        w0[i] = t5; // y\n"
           "    }\n"
           "    cvy_store(&cvy_as<cvy_f16>(a.t[0])[at.lin], w0);\n"
           "}\n");
}

static void prologues(void)
{
    static const emit_view views[] = {
        {.name = "y[4]"},
        {.name = "x[4,30]", .stride = {30, 1}, .varies = {true, true}, .whole = true},
        {.name = "column[4,1]", .stride = {1}, .varies = {true}},
        {.name = "number[1]"},
        {.name = "mean[30]", .stride = {0, 1}, .varies = {false, true}},
        {.name = "table[2,4,30]", .stride = {60, 2}, .varies = {true, true}},
    };
    static emit_statement statements[] = {
        {.kind = EMIT_LOAD, .view = 1, .note = "x"},
        {.kind = EMIT_LOAD, .view = 2, .note = "column"},
        {.kind = EMIT_OP, .op = OP_maximum, .a = 0, .b = 1, .p = {0, 1}, .note = "maximum"},
        {.kind = EMIT_OP, .op = OP_gelu, .a = 2, .b = CVY_NONE, .p = {1, 0}, .note = "gelu"},
        {.kind = EMIT_OP, .op = OP_mul, .a = 3, .b = CVY_NONE, .p = {-2.5e-7, 1}, .note = "mul"},
        {.kind = EMIT_LOAD, .view = 3, .note = "number"},
        {.kind = EMIT_OP, .op = OP_add, .a = 4, .b = 5, .p = {0, 1}, .note = "add"},
        {.kind = EMIT_NORM,
         .a = 6,
         .view = 4,
         .var = 4,
         .weight = CVY_NONE,
         .bias = CVY_NONE,
         .p = {1e-5, 0},
         .note = "batch_norm"},
        {.kind = EMIT_LOAD, .view = 5, .note = "table"},
        {.kind = EMIT_APPLY,
         .a = 7,
         .view = 0,
         .weight = CVY_NONE,
         .bias = CVY_NONE,
         .norm = {.outer = 2, .groups = 3, .chan = 10, .inner = 2, .over_outer = true},
         .note = "norm"},
        {.kind = EMIT_OP, .op = OP_softplus, .a = 9, .b = CVY_NONE, .p = {1, 20}, .note = "softplus"},
    };
    const emit_program pre = {.statements = statements,
                              .n_statements = COUNT_OF(statements),
                              .result = 10,
                              .extent = {4, 30, 1, 1, 1, 1}};
    const emit_spec spec = {.title = "reduce.cu", .views = views, .prologue = &pre};

    expect("prologue", &spec,
           "// epilogue.cuh - reduce.cu\n"
           "//\n"
           "#include \"common.cuh\"\n"
           "#include \"ops.cuh\"\n"
           "\n"
           "CVY_INLINE float cvy_prologue(const cvy_args &a, const cvy_at at)\n"
           "{\n"
           "    const float t1 = a.t[1].p[at.lin]; // x\n"
           "    const float t2 = a.t[2].p[at.i0]; // column\n"
           "    const float t3 = cvy_maximum(t1, t2); // maximum\n"
           "    const float t4 = cvy_gelu_tanh(t3); // gelu\n"
           "    const float t5 = cvy_mul(t4, -2.49999999e-07f); // mul\n"
           "    const float t6 = a.t[3].p[0]; // number\n"
           "    const float t7 = cvy_add(t5, t6); // add\n"
           "    const float t8 = cvy_norm_running(t7, a.t[4].p[at.i1], a.t[4].p[at.i1], 9.99999975e-06f); // "
           "batch_norm\n"
           "    const float t9 = a.t[5].p[(cvy_index)at.i0 * 60 + at.i1 * 2]; // table\n"
           "    const float t10 = cvy_norm_apply(t8, a.t[0].p, at.lin / 20 % 3); // norm\n"
           "    const float t11 = cvy_softplus(t10, 1.0f, 20.0f); // softplus\n"
           "    return t11;\n"
           "}\n");
}

/* relu | norm | * row | * plane + bias, of [N,16,6,6], four neighbours at a time: what lies in a run, what is the
 * same for all of them, and what lies apart. */
static void neighbours(void)
{
    static const emit_view views[] = {
        {.name = "y", .stride = {576, 36, 6, 1}, .varies = {true, true, true, true}, .whole = true},
        {.name = "x", .stride = {576, 36, 6, 1}, .varies = {true, true, true, true}, .whole = true},
        {.name = "weight[16]", .stride = {0, 1}, .varies = {false, true}},
        {.name = "stats"},
        {.name = "row[6]", .stride = {0, 0, 0, 1}, .varies = {false, false, false, true}},
        {.name = "plane[6,6]", .stride = {0, 0, 6, 1}, .varies = {false, false, true, true}},
    };
    static emit_statement read[] = {{.kind = EMIT_LOAD, .view = 1, .note = "x"},
                                    {.kind = EMIT_OP, .op = OP_relu, .a = 0, .b = CVY_NONE, .note = "relu"}};
    static emit_statement write[] = {
        {.kind = EMIT_APPLY,
         .a = EMIT_ARGUMENT,
         .view = 3,
         .weight = 2,
         .bias = CVY_NONE,
         .norm = {.outer = 2, .groups = 4, .chan = 4, .inner = 36},
         .note = "norm"},
        {.kind = EMIT_LOAD, .view = 4, .note = "row"},
        {.kind = EMIT_OP, .op = OP_mul, .a = 0, .b = 1, .p = {0, 1}, .note = "mul"},
        {.kind = EMIT_SCALE, .a = 2, .weight = 5, .bias = 2, .note = "scale"},
        {.kind = EMIT_STORE, .view = 0, .a = 3, .note = "y"},
    };
    const emit_program pre = {.statements = read, .n_statements = 2, .result = 1, .extent = {2, 16, 6, 6, 1, 1}};
    const emit_program post = {.statements = write, .n_statements = COUNT_OF(write), .extent = {2, 16, 6, 6, 1, 1}};
    const emit_spec spec = {.title = "norm.cu", .views = views, .many = 4, .prologue = &pre, .epilogue = &post};

    expect("neighbours", &spec,
           "// epilogue.cuh - norm.cu\n"
           "//\n"
           "#include \"common.cuh\"\n"
           "#include \"ops.cuh\"\n"
           "\n"
           "template <int N> CVY_INLINE void cvy_read(const cvy_args &a, const cvy_at (&all)[N], float (&x)[N])\n"
           "{\n"
           "    const cvy_at &at = all[0];\n"
           "    float r1[N];\n"
           "    cvy_load(&a.t[1].p[at.lin], r1);\n"
           "#pragma unroll\n"
           "    for (int i = 0; i < N; i++) {\n"
           "        const cvy_at &at = all[i];\n"
           "        const float t1 = r1[i]; // x\n"
           "        const float t2 = cvy_relu(t1); // relu\n"
           "        x[i] = t2;\n"
           "    }\n"
           "}\n"
           "\n"
           "template <int N> CVY_INLINE void cvy_write(const cvy_args &a, const cvy_at (&all)[N], const float "
           "(&x)[N])\n"
           "{\n"
           "    const cvy_at &at = all[0];\n"
           "    const float r2 = a.t[2].p[at.i1];\n"
           "    const cvy_index s3 = at.i0 * 4 + at.i1 / 4;\n"
           "    float r5[N];\n"
           "    cvy_load(&a.t[5].p[(cvy_index)at.i2 * 6 + at.i3], r5);\n"
           "    float w0[N];\n"
           "#pragma unroll\n"
           "    for (int i = 0; i < N; i++) {\n"
           "        const cvy_at &at = all[i];\n"
           "        const float t0 = x[i];\n"
           "        const float t1 = cvy_affine(cvy_norm_apply(t0, a.t[3].p, s3), r2, 0.0f); // norm\n"
           "        const float t2 = a.t[4].p[at.i3]; // row\n"
           "        const float t3 = cvy_mul(t1, t2); // mul\n"
           "        const float t4 = cvy_affine(t3, r5[i], r2); // scale\n"
           "        w0[i] = t4; // y\n"
           "    }\n"
           "    cvy_store(&a.t[0].p[at.lin], w0);\n"
           "}\n");
}

static const char *file_text(const char *name)
{
    for (const jit_file *f = cvyi_cuda_files; f->name; f++)
        if (strcmp(f->name, name) == 0) return f->data;
    return "";
}

/* Each pointwise row of ops.def, called as emit.c calls it, is defined in ops.cuh. */
static void every_operator_has_a_device_version(void)
{
    const char *ops = file_text("ops.cuh");
    int n = 0;

    for (int op = 0; op < OP_COUNT; op++) {
        const op_kind kind = cvyi_ops[op].kind;
        char definition[64];
        if (kind != KIND_UNARY && kind != KIND_BINARY) continue;
        snprintf(definition, sizeof definition, "float cvy_%s(const float x", cvyi_ops[op].name);
        CHECK(strstr(ops, definition), "ops.cuh has no %s", definition);
        n++;
    }
    CHECK(n > 30, "%d operators", n);
}

static void embedded_files_are_whole(void)
{
    static const char *const names[] = {"conv_direct.cu", "conv_simple.cu", "matmul.cu",     "norm_stats.cu",
                                        "pool.cu",        "reduce.cu",      "softmax.cu",    "pointwise.cu",
                                        "pack.cu",        "epilogue.cuh",   "common.cuh",    "ops.cuh",
                                        "norm.cu",        "held.cuh",       "softmax_row.cu"};
    for (int i = 0; i < COUNT_OF(names); i++) {
        const char *data = file_text(names[i]);
        const size_t len = strlen(data);
        CHECK(strncmp(data, "// ", 3) == 0 && strncmp(data + 3, names[i], strlen(names[i])) == 0, "%s", names[i]);
        CHECK(len > 100 && data[len - 1] == '\n', "%s ends early", names[i]);
    }
}

int main(void)
{
    epilogues();
    prologues();
    halves();
    neighbours();
    every_operator_has_a_device_version();
    embedded_files_are_whole();
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("cuda_emit");
}
