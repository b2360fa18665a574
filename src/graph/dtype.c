/* dtype.c - element types: their names and sizes, and which one an operator's result has. */
#include <string.h>
#include "graph.h"

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[DTYPE_COUNT] = {
    [CVY_FLOAT32] = {"fp32", 4},
    [CVY_FLOAT16] = {"fp16", 2},
    [CVY_BFLOAT16] = {"bf16", 2},
};

const char *cvyi_dtype_name(cvy_dtype dtype)
{
    return dtypes[dtype].name;
}

bool cvyi_dtype_find(const char *name, size_t len, cvy_dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strlen(dtypes[i].name) != len || memcmp(dtypes[i].name, name, len)) continue;
        *out = (cvy_dtype)i;
        return true;
    }
    return false;
}

int64_t cvyi_dtype_bytes(cvy_dtype dtype)
{
    return dtypes[dtype].bytes;
}

int64_t cvyi_value_bytes(const cvy_graph *g, int v)
{
    return cvyi_dtype_bytes(g->values[v].dtype) * cvyi_elements(cvyi_shape_of(g, v));
}

void cvyi_text_add_dtype(text *t, cvy_dtype dtype)
{
    if (dtype != CVY_FLOAT32) cvyi_text_add(t, ":%s", cvyi_dtype_name(dtype));
}

/* Statistics are float32 for data of any dtype. */
static bool is_statistics(const node *n, int arg)
{
    return cvyi_info(n)->kind == KIND_APPLY && arg == 1;
}

cvy_status cvyi_infer_dtype(const cvy_graph *g, const node *n, cvy_dtype *out)
{
    const value *data = NULL;

    for (int i = 0; i < n->n_args; i++) {
        const value *v = n->arg[i] == CVY_NONE ? NULL : &g->values[n->arg[i]];
        if (!v || v->fixed || is_statistics(n, i)) continue;
        if (!data) data = v;
        if (v->dtype != data->dtype)
            return cvyi_fail(
                CVY_INVALID, "%s: '%.60s' is %s, '%.60s' is %s: only parameters may have another dtype",
                cvyi_info(n)->name, data->name, cvyi_dtype_name(data->dtype), v->name, cvyi_dtype_name(v->dtype));
    }
    if (!data) data = &g->values[n->arg[0]];
    *out = n->op == OP_cast                   ? (cvy_dtype)n->attr[0].i[0]
           : cvyi_info(n)->kind == KIND_STATS ? CVY_FLOAT32
                                              : data->dtype;
    return CVY_OK;
}
