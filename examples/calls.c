/* calls.c - block B built call by call, for programs that translate graphs of their own; then printed as chain
 * text.
 *
 *     cc calls.c $(pkg-config --cflags --libs convoy) */
#include <convoy.h>
#include <stdio.h>

/* Applies an operator to a value; attributes by their names in torch.nn.functional. */
static cvy_status apply(cvy_graph *graph, const char *op, cvy_value from, const cvy_attr *attrs, int32_t n_attrs,
                        cvy_value *out)
{
    const cvy_call call = {
        .size = sizeof call, .op = op, .args = &from, .n_args = 1, .attrs = attrs, .n_attrs = n_attrs};
    return cvy_graph_apply(graph, &call, out);
}

static cvy_status add(cvy_graph *graph, cvy_value a, cvy_value b, cvy_value *out)
{
    const cvy_value args[] = {a, b};
    const cvy_call call = {.size = sizeof call, .op = "add", .args = args, .n_args = 2};
    return cvy_graph_apply(graph, &call, out);
}

static cvy_status build(cvy_graph *graph)
{
    static const int64_t dims[] = {128, 8, 128, 128};
    static const cvy_attr conv[] = {{"out_channels", NULL, 1, {64}}, {"kernel_size", NULL, 1, {3}}};
    static const cvy_attr groups[] = {{"num_groups", NULL, 1, {16}}};
    static const cvy_attr over[] = {{"dim", NULL, 1, {1}}, {"keepdim", NULL, 1, {1}}};
    cvy_value x, c, y;
    cvy_status st = cvy_graph_input(graph, "x", CVY_FLOAT32, 4, dims, &x);

    if (!st) st = apply(graph, "conv2d", x, conv, 2, &c);
    if (!st) st = apply(graph, "group_norm", c, groups, 1, &y);
    if (!st) st = apply(graph, "tanh", y, NULL, 0, &y);
    if (!st) st = apply(graph, "hardswish", y, NULL, 0, &y);
    if (!st) st = add(graph, y, c, &y);
    if (!st) st = apply(graph, "logsumexp", y, over, 2, &y);
    if (!st) st = cvy_graph_output(graph, y);
    return st;
}

int main(void)
{
    cvy_graph *graph = NULL;
    char text[512];
    cvy_status st = cvy_graph_create(&graph);

    if (!st) st = build(graph);
    if (!st) st = cvy_graph_print(graph, text, sizeof text, NULL);
    if (!st) puts(text);
    if (st) fprintf(stderr, "%s: %s\n", cvy_status_name(st), cvy_last_error());
    cvy_graph_free(graph);
    return st != CVY_OK;
}
