/* print.c - a graph as chain text, which parse.c reads back into the same graph: same inputs, parameters, nodes and
 * outputs, in the same order, under the same names.
 *
 * Nodes are written in their order. Three things are added only if they are needed: `@name` as a stage if a node
 * does not read the one before it, `@name` after a node whose automatic name would differ, and param(...) before a
 * node if parameters were created earlier than their first use would create them. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "graph.h"

typedef struct printer {
    const cvy_graph *g;
    text *t;
    bool *there;          /* per value: the text so far has created it */
    bool *said;           /* per value: something reads it by name */
    bool begun;           /* a stage is written */
    int next_param;       /* parameters below this value are there */
    int suffix[OP_COUNT]; /* per operator, the number at which its next automatic name is looked for */
} printer;

/* ---- attributes ---- */

static void add_words(text *t, const char *words, int64_t index)
{
    for (; index > 0 && words; index--) {
        words = strchr(words, '|');
        if (words) words++;
    }
    if (words) cvyi_text_add(t, "'%.*s'", (int)strcspn(words, "|"), words);
}

static void add_attr(text *t, const attr_def *def, const attr_value *a)
{
    if (!a->count)
        cvyi_text_add(t, def->required ? "()" : "None");
    else if (def->kind == ATTR_NUMBER)
        cvyi_text_add_number(t, a->f);
    else if (def->kind == ATTR_BOOL)
        cvyi_text_add(t, a->i[0] ? "True" : "False");
    else if (def->kind == ATTR_WORD)
        add_words(t, def->words, a->i[0]);
    else if (def->kind == ATTR_PADDING && a->i[0] < 0)
        add_words(t, "same|valid", -1 - a->i[0]);
    else {
        if (a->count > 1) cvyi_text_add(t, "(");
        for (int i = 0; i < a->count; i++) cvyi_text_add(t, "%s%lld", i ? ", " : "", (long long)a->i[i]);
        if (a->count > 1) cvyi_text_add(t, ")");
    }
}

static bool same_attr(const attr_def *def, const attr_value *a, const attr_value *b)
{
    if (a->count != b->count) return false;
    if (def->kind == ATTR_NUMBER) return !memcmp(&a->f, &b->f, sizeof a->f); /* -0 is not 0 */
    return !memcmp(a->i, b->i, (size_t)a->count * sizeof *a->i);
}

/* `other`, a number or a tensor, is the one argument besides the required that is written without its keyword. */
static bool positional(const char *name)
{
    return !strcmp(name, "other");
}

/* ---- an operator and its arguments ---- */

/* Whether parsing would create this very parameter for tensor argument i if the text left it out. */
static bool is_natural(const cvy_graph *g, const node *n, int i)
{
    const op_info *op = cvyi_info(n);
    const value *v = &g->values[n->arg[i]], *out = &g->values[n->out];
    const size_t len = strlen(out->name);
    shape want;

    if (v->kind != VALUE_PARAM || strncmp(v->name, out->name, len) || v->name[len] != '.') return false;
    if (strcmp(v->name + len + 1, op->tensors[i - 1]) || cvyi_natural_shape(g, n, i, &want)) return false;
    return cvyi_same_shape(&want, &v->shape) && v->dtype == g->values[n->arg[0]].dtype;
}

/* A tensor argument: @c, or scale[64,1,1]:bf16 if it is new. `there` NULL: shapes do not matter. */
static void add_tensor(const cvy_graph *g, bool *there, int v, text *t)
{
    const bool fresh = there && !there[v];
    cvyi_text_add(t, "%s%s", fresh ? "" : "@", g->values[v].name);
    if (fresh) cvyi_text_add_shape(t, &g->values[v].shape);
    if (fresh) cvyi_text_add_dtype(t, g->values[v].dtype);
    if (fresh) there[v] = true;
}

static void begin_argument(text *t, int *count, const char *keyword)
{
    cvyi_text_add(t, "%s", (*count)++ ? ", " : "(");
    if (!positional(keyword)) cvyi_text_add(t, "%s=", keyword);
}

/* conv2d(64, 3, padding=1, weight=@w): required attributes, `other`, then keywords. */
static void add_operator(const cvy_graph *g, const node *n, bool *there, text *t)
{
    const op_info *op = cvyi_info(n);
    node_spec defaults;
    int count = 0;

    cvyi_spec_init(&defaults, n->op);
    cvyi_text_add(t, "%s", op->name);
    for (int i = 0; i < op->n_attrs && op->attrs[i].required; i++) {
        cvyi_text_add(t, "%s", count++ ? ", " : "(");
        add_attr(t, &op->attrs[i], &n->attr[i]);
    }
    for (int i = 1; i < n->n_args; i++) {
        if (n->arg[i] == CVY_NONE || !positional(op->tensors[i - 1])) continue;
        begin_argument(t, &count, op->tensors[i - 1]);
        add_tensor(g, there, n->arg[i], t);
    }
    for (int i = 0; i < op->n_attrs; i++) {
        if (op->attrs[i].required || same_attr(&op->attrs[i], &n->attr[i], &defaults.attr[i])) continue;
        begin_argument(t, &count, op->attrs[i].name);
        add_attr(t, &op->attrs[i], &n->attr[i]);
    }
    for (int i = 1; i < n->n_args; i++) {
        const int v = n->arg[i];
        if (v == CVY_NONE || positional(op->tensors[i - 1])) continue;
        if (is_natural(g, n, i) && (!there || !there[v])) continue;
        begin_argument(t, &count, op->tensors[i - 1]);
        add_tensor(g, there, v, t);
    }
    if (count) cvyi_text_add(t, ")");
}

void cvyi_print_node(const cvy_graph *g, const node *n, text *t)
{
    add_operator(g, n, NULL, t);
}

/* ---- parameters in their order ---- */

static int next_of_kind(const cvy_graph *g, value_kind kind, int v)
{
    while (v < g->n_values && g->values[v].kind != kind) v++;
    return v;
}

/* The parameters that the text of a node would create, in that order: those in its arguments, then natural ones. */
static int created_by(const printer *p, const node *n, int made[MAX_ARGS])
{
    int count = 0;
    for (int natural = 0; natural < 2; natural++) {
        for (int i = 1; i < n->n_args; i++) {
            const int v = n->arg[i];
            bool again = false;
            if (v == CVY_NONE || p->g->values[v].kind != VALUE_PARAM || p->there[v]) continue;
            for (int k = 0; k < count; k++) again |= made[k] == v;
            if (!again && is_natural(p->g, n, i) == (natural == 1)) made[count++] = v;
        }
    }
    return count;
}

/* Whether they are the graph's next parameters. The current value must already exist, if it is a parameter. */
static bool in_order(const printer *p, const node *n)
{
    int made[MAX_ARGS];
    const int count = created_by(p, n, made);
    int v = p->next_param;

    if (p->g->values[n->arg[0]].kind == VALUE_PARAM && !p->there[n->arg[0]]) return false;
    for (int i = 0; i < count; i++) {
        v = next_of_kind(p->g, VALUE_PARAM, v);
        if (v != made[i]) return false;
        v++;
    }
    return true;
}

static void begin_stage(printer *p)
{
    if (p->begun) cvyi_text_add(p->t, " | ");
    p->begun = true;
}

/* param(a[2], b[3]): as many of the next parameters as must be there before the node; all if n is NULL. */
static void declare_before(printer *p, const node *n)
{
    bool open = false;
    while (!n || !in_order(p, n)) {
        const int v = next_of_kind(p->g, VALUE_PARAM, p->next_param);
        if (v == p->g->n_values) break;
        if (!open) begin_stage(p);
        cvyi_text_add(p->t, "%s", open ? ", " : "param(");
        add_tensor(p->g, p->there, v, p->t);
        p->next_param = v + 1;
        open = true;
    }
    if (open) cvyi_text_add(p->t, ")");
}

/* ---- the whole ---- */

/* Whether a node without `@name` would get its name back. */
static bool name_comes_back(printer *p, const node *n)
{
    char name[NAME_BYTES];
    int *suffix = &p->suffix[n->op], v;

    if (!*suffix) *suffix = 1;
    for (;; ++*suffix) {
        cvyi_suffixed_name(n->op, *suffix, name);
        v = cvyi_value_find(p->g, name, strlen(name));
        if (v == CVY_NONE || !p->there[v]) return v == n->out;
    }
}

static void add_node(printer *p, int index)
{
    const cvy_graph *g = p->g;
    const node *n = &g->nodes[index];
    int made[MAX_ARGS], count;

    declare_before(p, n);
    count = created_by(p, n, made);
    if (n->arg[0] != (index ? g->nodes[index - 1].out : next_of_kind(g, VALUE_INPUT, 0))) {
        begin_stage(p);
        cvyi_text_add(p->t, "@%s", g->values[n->arg[0]].name);
    }
    begin_stage(p);
    add_operator(g, n, p->there, p->t);
    if (n->named || p->said[n->out] || !name_comes_back(p, n)) cvyi_text_add(p->t, " @%s", g->values[n->out].name);
    for (int i = 0; i < count; i++) {
        p->there[made[i]] = true;
        p->next_param = made[i] + 1;
    }
    p->there[n->out] = true;
}

/* Marks the values that are read by name. Returns whether the outputs must be printed. */
static bool mark_said(printer *p)
{
    const cvy_graph *g = p->g;
    int running = next_of_kind(g, VALUE_INPUT, 0);
    const int *outputs = NULL;
    const int n_outputs = cvyi_graph_outputs(g, &outputs);
    bool said;

    for (int i = 0; i < g->n_nodes; i++) {
        const node *n = &g->nodes[i];
        for (int k = 0; k < n->n_args; k++)
            if (n->arg[k] != CVY_NONE && (k > 0 || n->arg[k] != running)) p->said[n->arg[k]] = true;
        running = n->out;
    }
    said = n_outputs > 1 || (n_outputs == 1 && outputs[0] != running);
    for (int i = 0; said && i < n_outputs; i++) p->said[outputs[i]] = true;
    return said;
}

static void add_inputs(printer *p)
{
    const cvy_graph *g = p->g;
    for (int v = next_of_kind(g, VALUE_INPUT, 0); v < g->n_values; v = next_of_kind(g, VALUE_INPUT, v + 1)) {
        if (p->begun) cvyi_text_add(p->t, ", ");
        add_tensor(g, p->there, v, p->t);
        p->begun = true;
    }
}

static void add_outputs(printer *p)
{
    const int *outputs = NULL;
    const int n = cvyi_graph_outputs(p->g, &outputs);

    begin_stage(p);
    cvyi_text_add(p->t, "output(");
    for (int i = 0; i < n; i++) cvyi_text_add(p->t, "%s@%s", i ? ", " : "", p->g->values[outputs[i]].name);
    cvyi_text_add(p->t, ")");
}

cvy_status cvyi_print_graph(const cvy_graph *g, text *t)
{
    printer p = {.g = g, .t = t};
    cvy_status st = CVY_OK;
    bool outputs;

    p.there = cvyi_alloc(2 * (size_t)g->n_values, sizeof *p.there);
    if (!p.there) return CVY_NO_MEMORY;
    p.said = p.there + g->n_values;
    outputs = mark_said(&p);
    add_inputs(&p);
    for (int i = 0; i < g->n_nodes; i++) add_node(&p, i);
    declare_before(&p, NULL);
    if (outputs) add_outputs(&p);
    if (t->failed) st = CVY_NO_MEMORY;
    cvyi_free(p.there);
    return st;
}

cvy_status cvy_graph_print(const cvy_graph *g, char *dst, size_t capacity, size_t *needed)
{
    text t = {0};
    cvy_status st = CVY_OK;

    if (!g) return cvyi_fail(CVY_INVALID, "graph is NULL");
    TRY(cvyi_print_graph(g, &t));
    TRY(cvyi_text_copy(&t, dst, capacity, needed));
fail:
    cvyi_text_free(&t);
    return st;
}

/* ---- signatures ---- */

CVYI_PRINTF(3, 4) static void append(char *out, size_t *len, const char *format, ...)
{
    va_list args;
    int n;
    va_start(args, format);
    n = vsnprintf(out + *len, SIGNATURE_BYTES - *len, format, args);
    va_end(args);
    if (n > 0) *len = *len + (size_t)n < SIGNATURE_BYTES ? *len + (size_t)n : SIGNATURE_BYTES - 1;
}

void cvyi_signature(op_id op, char out[SIGNATURE_BYTES])
{
    const op_info *info = &cvyi_ops[op];
    const bool other = info->n_tensors && positional(info->tensors[0]);
    size_t len = 0;

    append(out, &len, "%s(%s", info->name, other ? "other" : "");
    for (int i = 0; i < info->n_attrs; i++) {
        const attr_def *def = &info->attrs[i];
        const char *quote = def->kind == ATTR_WORD ? "'" : "";
        if (positional(def->name)) continue;
        append(out, &len, "%s%s", i || other ? ", " : "", def->name);
        if (!def->required) append(out, &len, "=%s%s%s", quote, def->otherwise, quote);
    }
    append(out, &len, ")");
}

static char signatures[OP_COUNT][SIGNATURE_BYTES];
static int n_signatures;

static void write_signatures(void)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (!(cvyi_ops[i].flags & FLAG_INTERNAL)) cvyi_signature((op_id)i, signatures[n_signatures++]);
}

int32_t cvy_op_slow(int32_t index)
{
    int op = 0;
    if (index < 0) return 0;
    for (; op < OP_COUNT; op++) /* the same numbers as the signatures' */
        if (!(cvyi_ops[op].flags & FLAG_INTERNAL) && index-- == 0) break;
    return op < OP_COUNT && cvyi_ops[op].flags & FLAG_SLOW ? 1 : 0;
}

const char *cvy_op_signature(int32_t index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_signatures);
    return index >= 0 && index < n_signatures ? signatures[index] : NULL;
}
