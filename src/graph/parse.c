/* parse.c - the chain text into a graph. doc/CHAIN.md is the grammar.
 *
 * One pass from left to right, no recursion (a list inside arguments is as deep as it gets), and nothing is read
 * twice: time grows with the length of the text. Every message begins with the column, in bytes from 1. */
#include <stdio.h>
#include <string.h>
#include "parse.h"

enum { MAX_TEXT = 1 << 20, WORD_BYTES = 32 };

typedef enum arg_kind { ARG_NUMBERS, ARG_BOOL, ARG_NONE, ARG_WORD, ARG_TENSOR } arg_kind;

/* An argument that was read, before the operator says what it is for. */
typedef struct argument {
    arg_kind kind;
    const char *at; /* where it is */
    int tensor;     /* ARG_TENSOR: value */
    int count;      /* ARG_NUMBERS, ARG_BOOL */
    double number[CVY_MAX_RANK];
    char word[WORD_BYTES];
} argument;

/* An operator stage while its arguments are read. */
typedef struct stage {
    node_spec spec;
    const op_info *op;
    bool given[MAX_ATTRS];
    int next_attr, next_tensor; /* the next positional ones */
    bool keyword;               /* a keyword was seen: nothing positional may follow */
    cvy_attr spread;            /* numbers so far of a list written without its parentheses */
} stage;

/* ---- tensors ---- */

/* name[extents]:dtype, a new input or parameter. */
static cvy_status declare(parser *p, value_kind kind, int *out)
{
    const bool input = kind == VALUE_INPUT;
    char name[NAME_BYTES];
    const char *start;
    cvy_status st = CVY_OK;
    cvy_dtype dtype = p->plain;
    shape s;

    cvyi_scan_space(p);
    start = p->at;
    TRY(cvyi_scan_name(p, input ? "an input such as x[1,8,32,32]" : "a parameter such as scale[64,1,1]", name));
    TRY(cvyi_scan_extents(p, &s));
    if (cvyi_scan_accept(p, ':')) TRY(cvyi_scan_dtype(p, &dtype));
    if (cvyi_value_find(p->graph, name, strlen(name)) != CVY_NONE)
        return cvyi_locate(p, start, cvyi_fail(CVY_INVALID, "'%.60s' already exists; @%.60s reads it", name, name));
    if (input)
        st = cvy_graph_input(p->graph, name, dtype, s.rank, s.dim, out);
    else
        st = cvy_graph_param(p->graph, name, dtype, s.rank, s.dim, out);
    TRY(cvyi_locate(p, start, st));
fail:
    return st;
}

/* A name of one or two letters is near to every other, so nothing is proposed for it. */
static cvy_status unknown_value(const parser *p, size_t n)
{
    nearest near = {.word = p->at, .length = n};
    char seen[SEEN_BYTES];

    cvyi_describe(p->at, seen);
    cvyi_fail(CVY_INVALID, "there is no value %s", seen);
    for (int v = p->graph->n_values; n > 2 && v-- > 0;) cvyi_near_try(&near, p->graph->values[v].name);
    return near.best ? cvyi_fail_more(CVY_INVALID, "; did you mean '%s'?", near.best) : CVY_INVALID;
}

/* @name, with the @ coming next: an existing value. */
static cvy_status read_reference(parser *p, int *out)
{
    const char *start = p->at++;
    const size_t n = cvyi_name_length(p->at);

    if (!n) return cvyi_expected(p, "a name after '@'");
    *out = cvyi_value_find(p->graph, p->at, n);
    if (*out == CVY_NONE) return cvyi_locate(p, start, unknown_value(p, n));
    p->at += n;
    return CVY_OK;
}

/* ---- arguments ---- */

/* (3,3) or [3,3]; a comma may follow the last, as in Python. */
static cvy_status read_list(parser *p, argument *a)
{
    const char close = *p->at == '(' ? ')' : ']';
    cvy_status st = CVY_OK;

    memcpy(a->word, "()", 3); /* for a message, if it stays empty */
    p->at++;
    do {
        cvyi_scan_space(p);
        if (*p->at == close) break;
        if (a->count == CVY_MAX_RANK)
            return cvyi_locate(p, p->at, cvyi_fail(CVY_INVALID, "more than %d numbers in a list", CVY_MAX_RANK));
        TRY(cvyi_scan_number(p, &a->number[a->count++]));
    } while (cvyi_scan_accept(p, ','));
    if (!cvyi_scan_accept(p, close)) return cvyi_expected(p, close == ')' ? "',' or ')'" : "',' or ']'");
fail:
    return st;
}

/* A word in quotes: never True, None or a number. */
static cvy_status read_quoted(parser *p, argument *a)
{
    const char quote = *p->at++;
    const size_t n = cvyi_name_length(p->at);

    if (!n || n >= WORD_BYTES) return cvyi_expected(p, "a word in quotes");
    memcpy(a->word, p->at, n);
    p->at += n;
    if (*p->at != quote) return cvyi_expected(p, "the closing quote");
    p->at++;
    a->kind = ARG_WORD;
    return CVY_OK;
}

/* A bare word: a constant, a number by its name, or a word such as same. */
static cvy_status read_word(parser *p, size_t n, argument *a)
{
    const bool yes = cvyi_word_is(p->at, n, "True"), no = cvyi_word_is(p->at, n, "False");

    if (cvyi_word_is(p->at, n, "inf") || cvyi_word_is(p->at, n, "nan")) {
        a->count = 1;
        return cvyi_scan_number(p, &a->number[0]);
    }
    if (n >= WORD_BYTES) return cvyi_expected(p, "an argument");
    memcpy(a->word, p->at, n);
    p->at += n;
    a->kind = yes || no ? ARG_BOOL : cvyi_word_is(a->word, n, "None") ? ARG_NONE : ARG_WORD;
    a->count = yes || no;
    a->number[0] = yes;
    return CVY_OK;
}

static cvy_status read_argument(parser *p, argument *a)
{
    const char c = cvyi_scan_space(p);
    const size_t n = cvyi_name_length(p->at);
    parser ahead = *p;

    *a = (argument){.kind = ARG_NUMBERS, .at = p->at};
    ahead.at += n;
    if (c == '@' || (n && cvyi_scan_space(&ahead) == '[')) {
        a->kind = ARG_TENSOR;
        return c == '@' ? read_reference(p, &a->tensor) : declare(p, VALUE_PARAM, &a->tensor);
    }
    if (c == '(' || c == '[') return read_list(p, a);
    if (c == '\'' || c == '"') return read_quoted(p, a);
    if (n) return read_word(p, n, a);
    if (!is_digit(c) && c != '-' && c != '+' && c != '.') return cvyi_expected(p, "an argument");
    a->count = 1;
    return cvyi_scan_number(p, &a->number[0]);
}

/* ---- what an argument is for ---- */

static cvy_status unknown_keyword(const parser *p, const stage *s, const char *at, const char *key)
{
    nearest near = {.word = key, .length = strlen(key)};
    char signature[SIGNATURE_BYTES];

    cvyi_signature((op_id)(s->op - cvyi_ops), signature);
    for (int i = 0; i < s->op->n_attrs; i++) cvyi_near_try(&near, s->op->attrs[i].name);
    for (int i = 0; i < s->op->n_tensors; i++) cvyi_near_try(&near, s->op->tensors[i]);
    cvyi_fail(CVY_INVALID, "%s has no argument '%.60s': %s", s->op->name, key, signature);
    return cvyi_locate(p, at,
                       near.best ? cvyi_fail_more(CVY_INVALID, "; did you mean '%s'?", near.best) : CVY_INVALID);
}

static cvy_status given_twice(const parser *p, const stage *s, const char *at, const char *what)
{
    return cvyi_locate(p, at, cvyi_fail(CVY_INVALID, "%s: %s is given twice", s->op->name, what));
}

static int attr_index(const op_info *op, const char *name)
{
    for (int i = 0; i < op->n_attrs; i++)
        if (!strcmp(op->attrs[i].name, name)) return i;
    return -1;
}

static int tensor_index(const op_info *op, const char *name)
{
    for (int i = 0; i < op->n_tensors; i++)
        if (!strcmp(op->tensors[i], name)) return i;
    return -1;
}

static cvy_status set_tensor(const parser *p, stage *s, int i, const argument *a)
{
    const int attr = attr_index(s->op, s->op->tensors[i]);
    /* add(1, @c): `other` is either a number or a tensor. A norm's or a convolution's `bias` may be both. */
    const bool number_too = attr >= 0 && s->given[attr] && s->op->attrs[attr].kind == ATTR_NUMBER;

    if (s->spec.arg[1 + i] != CVY_NONE || number_too) return given_twice(p, s, a->at, s->op->tensors[i]);
    s->spec.arg[1 + i] = a->tensor;
    return CVY_OK;
}

static cvy_status wrong_kind(const parser *p, const attr_def *def, const argument *a)
{
    static const char *const wanted[] = {
        [ATTR_INT] = "a number",       [ATTR_SPATIAL] = "a number", [ATTR_PADDING] = "a number, 'same' or 'valid'",
        [ATTR_DIMS] = "whole numbers", [ATTR_NUMBER] = "a number",  [ATTR_BOOL] = "True or False",
        [ATTR_WORD] = "a word",
    };
    return cvyi_locate(p, a->at,
                       cvyi_fail(CVY_INVALID, "expected %s for %s, got '%s'", wanted[def->kind], def->name,
                                 a->kind == ARG_TENSOR ? p->graph->values[a->tensor].name : a->word));
}

static cvy_status set_attr(const parser *p, stage *s, int i, const argument *a)
{
    const attr_def *def = &s->op->attrs[i];
    const int tensor = tensor_index(s->op, def->name);
    const bool words = def->kind == ATTR_WORD || def->kind == ATTR_PADDING;
    cvy_attr attr = {.name = def->name, .count = a->count};

    if (s->given[i]) return given_twice(p, s, a->at, def->name);
    if (def->kind == ATTR_NUMBER && tensor >= 0 && s->spec.arg[1 + tensor] != CVY_NONE)
        return given_twice(p, s, a->at, def->name);
    if ((a->kind == ARG_WORD && !words) || (a->kind == ARG_BOOL && def->kind != ATTR_BOOL) || a->kind == ARG_TENSOR)
        return wrong_kind(p, def, a);
    /* () is for reshape to a tensor without dimensions; None is not, and elsewhere None means what () would. */
    if ((a->kind == ARG_NONE && def->required) ||
        (a->kind == ARG_NUMBERS && !a->count && !(def->required && def->kind == ATTR_DIMS)))
        return wrong_kind(p, def, a);
    if (a->kind == ARG_WORD) attr.text = a->word;
    memcpy(attr.value, a->number, sizeof attr.value);
    s->given[i] = true;
    s->spread = attr;
    return cvyi_locate(p, a->at, cvyi_spec_set(&s->spec, &attr));
}

/* reshape(2,3,4) for reshape((2,3,4)), if a list is the operator's only argument. */
static bool takes_only_a_list(const op_info *op)
{
    return op->n_attrs == 1 && op->attrs[0].kind == ATTR_DIMS;
}

static cvy_status spread_list(const parser *p, stage *s, const argument *a)
{
    if (s->spread.count + a->count > CVY_MAX_RANK)
        return cvyi_locate(p, a->at, cvyi_fail(CVY_INVALID, "more than %d numbers in a list", CVY_MAX_RANK));
    memcpy(s->spread.value + s->spread.count, a->number, (size_t)a->count * sizeof *a->number);
    s->spread.count += a->count;
    return cvyi_locate(p, a->at, cvyi_spec_set(&s->spec, &s->spread));
}

static cvy_status too_many(const parser *p, const stage *s, const argument *a)
{
    const bool tensor = a->kind == ARG_TENSOR;
    const int most = tensor ? s->op->n_tensors : s->op->n_attrs;
    const char *what = tensor ? "tensor" : "argument", *which = tensor ? "" : " besides tensors";

    if (!most) return cvyi_locate(p, a->at, cvyi_fail(CVY_INVALID, "%s takes no %ss%s", s->op->name, what, which));
    return cvyi_locate(
        p, a->at,
        cvyi_fail(CVY_INVALID, "%s takes at most %d %s%s%s", s->op->name, most, what, most > 1 ? "s" : "", which));
}

static cvy_status set_positional(const parser *p, stage *s, const argument *a)
{
    const op_info *op = s->op;

    if (s->keyword)
        return cvyi_locate(p, a->at, cvyi_fail(CVY_INVALID, "%s: expected a keyword after a keyword", op->name));
    if (a->kind == ARG_TENSOR && s->next_tensor < op->n_tensors) return set_tensor(p, s, s->next_tensor++, a);
    if (a->kind == ARG_NUMBERS && takes_only_a_list(op) && s->spread.count) return spread_list(p, s, a);
    if (a->kind != ARG_TENSOR && s->next_attr < op->n_attrs) return set_attr(p, s, s->next_attr++, a);
    return too_many(p, s, a);
}

static cvy_status set_keyword(const parser *p, stage *s, const char *at, const char *key, const argument *a)
{
    const int attr = attr_index(s->op, key), tensor = tensor_index(s->op, key);

    s->keyword = true;
    if (attr < 0 && tensor < 0) return unknown_keyword(p, s, at, key);
    if (a->kind == ARG_TENSOR && tensor >= 0) return set_tensor(p, s, tensor, a);
    if (attr >= 0) return set_attr(p, s, attr, a);
    return cvyi_locate(p, a->at, cvyi_fail(CVY_INVALID, "expected a tensor for %s, such as @c or w[8,3]", key));
}

/* One argument, with or without `key=`. */
static cvy_status read_operator_argument(parser *p, stage *s)
{
    const char *start;
    char key[NAME_BYTES] = "";
    parser ahead;
    argument a;
    cvy_status st = CVY_OK;

    cvyi_scan_space(p);
    start = p->at;
    ahead = *p;
    ahead.at += cvyi_name_length(p->at);
    if (ahead.at > start && cvyi_scan_accept(&ahead, '=')) {
        TRY(cvyi_scan_name(p, "a keyword", key));
        p->at = ahead.at;
    }
    TRY(read_argument(p, &a));
    st = *key ? set_keyword(p, s, start, key, &a) : set_positional(p, s, &a);
fail:
    return st;
}

/* ---- stages ---- */

/* `conv2d(64, 3, padding=1) @c`, with the name coming next. */
static cvy_status read_operator(parser *p)
{
    const char *start = p->at;
    const size_t n = cvyi_name_length(start);
    const op_id op = cvyi_op_find(start, n);
    char name[NAME_BYTES];
    stage s = {.op = &cvyi_ops[op]};
    cvy_status st = CVY_OK;

    if (!n) return cvyi_expected(p, "an operator");
    if (op == OP_COUNT) return cvyi_locate(p, start, cvyi_op_unknown(start, n));
    if (p->running == CVY_NONE)
        return cvyi_locate(p, start,
                           cvyi_fail(CVY_INVALID, "%s has no input: expected '@name' before it", s.op->name));
    cvyi_spec_init(&s.spec, op);
    s.spec.natural = true;
    s.spec.n_args = 1 + s.op->n_tensors;
    s.spec.arg[0] = p->running;
    p->at += n;
    if (cvyi_scan_accept(p, '(') && !cvyi_scan_accept(p, ')')) {
        do TRY(read_operator_argument(p, &s));
        while (cvyi_scan_accept(p, ','));
        if (!cvyi_scan_accept(p, ')')) return cvyi_expected(p, "',' or ')'");
    }
    if (cvyi_scan_accept(p, '@')) {
        TRY(cvyi_scan_name(p, "a name after '@'", name));
        s.spec.name = name;
    }
    TRY(cvyi_locate(p, start,
                    cvyi_hinted(p->graph, &s.spec, s.next_attr, cvyi_graph_add(p->graph, &s.spec, &p->running))));
fail:
    return st;
}

/* output(@a, @b), with the parenthesis coming next. */
static cvy_status read_outputs(parser *p)
{
    const char *start;
    cvy_status st = CVY_OK;
    int v;

    p->at++;
    do {
        if (cvyi_scan_space(p) != '@') return cvyi_expected(p, "'@' and the name of a value");
        start = p->at;
        TRY(read_reference(p, &v));
        TRY(cvyi_locate(p, start, cvy_graph_output(p->graph, v)));
    } while (cvyi_scan_accept(p, ','));
    if (!cvyi_scan_accept(p, ')')) return cvyi_expected(p, "',' or ')'");
    p->ended = true;
fail:
    return st;
}

/* a[2], b[3]: inputs, or the parameters of param(...). The first input becomes the current value. */
static cvy_status read_declarations(parser *p, value_kind kind)
{
    cvy_status st = CVY_OK;
    int v;

    do {
        TRY(declare(p, kind, &v));
        if (kind == VALUE_INPUT && p->running == CVY_NONE) p->running = v;
    } while (cvyi_scan_accept(p, ','));
fail:
    return st;
}

static cvy_status read_params(parser *p)
{
    cvy_status st = CVY_OK;

    p->at++;
    TRY(read_declarations(p, VALUE_PARAM));
    if (!cvyi_scan_accept(p, ')')) return cvyi_expected(p, "',' or ')'");
fail:
    return st;
}

static cvy_status read_stage(parser *p, bool first)
{
    const bool reference = cvyi_scan_space(p) == '@';
    const size_t n = cvyi_name_length(p->at);
    parser ahead = *p;
    bool call;

    if (reference) return read_reference(p, &p->running);
    ahead.at += n;
    call = cvyi_scan_space(&ahead) == '(';
    if (call && cvyi_word_is(p->at, n, "param")) {
        p->at = ahead.at;
        return read_params(p);
    }
    if (first) return read_declarations(p, VALUE_INPUT);
    if (call && cvyi_word_is(p->at, n, "output")) {
        p->at = ahead.at;
        return read_outputs(p);
    }
    return read_operator(p);
}

static cvy_status parse_into(cvy_graph *g, int from, const char *source, cvy_dtype plain, int *out)
{
    parser p = {.graph = g, .text = source, .at = source, .running = from, .plain = plain};
    const graph_mark mark = cvyi_graph_mark(g);
    const bool whole = from == CVY_NONE;
    const int *outputs = NULL;
    cvy_status st = CVY_OK;

    if (strnlen(source, MAX_TEXT + 1) > MAX_TEXT) {
        TRY(cvyi_locate(&p, source + MAX_TEXT, cvyi_fail(CVY_INVALID, "the text is longer than 1 MiB")));
    }
    TRY(read_stage(&p, whole));
    while (cvyi_scan_accept(&p, '|')) {
        cvyi_scan_space(&p);
        if (p.ended) TRY(cvyi_expected(&p, "nothing after output(...)"));
        TRY(read_stage(&p, false));
    }
    if (cvyi_scan_space(&p)) TRY(cvyi_expected(&p, p.ended ? "the end of the text" : "'|' or the end of the text"));
    /* A chain that ends with `@c` gives c, though a later operator is the graph's last. */
    if (whole && !p.ended && cvyi_graph_outputs(g, &outputs) && *outputs != p.running)
        TRY(cvyi_locate(&p, p.at, cvy_graph_output(g, p.running)));
    *out = p.running;
    return CVY_OK;
fail:
    cvyi_graph_rollback(g, &mark);
    return st;
}

cvy_status cvyi_graph_parse_as(const char *source, cvy_dtype plain, cvy_graph **out)
{
    cvy_graph *g = NULL;
    cvy_status st = CVY_OK;
    int last;

    if (!out) return cvyi_fail(CVY_INVALID, "result pointer is NULL");
    *out = NULL;
    if (!source) return cvyi_fail(CVY_INVALID, "the text is NULL");
    TRY(cvy_graph_create(&g));
    TRY(parse_into(g, CVY_NONE, source, plain, &last));
    *out = g;
    return CVY_OK;
fail:
    cvy_graph_free(g);
    return st;
}

cvy_status cvy_graph_parse(const char *source, cvy_graph **out)
{
    return cvyi_graph_parse_as(source, CVY_FLOAT32, out);
}

cvy_status cvy_graph_chain(cvy_graph *g, cvy_value from, const char *source, cvy_value *out)
{
    cvy_status st = CVY_OK;
    int last;

    if (!g || !source || !out) return cvyi_fail(CVY_INVALID, "graph, text or result pointer is NULL");
    *out = CVY_NONE;
    if (from < 0 || from >= g->n_values) return cvyi_fail(CVY_INVALID, "chain: not a value of this graph");
    TRY(parse_into(g, from, source, CVY_FLOAT32, &last));
    *out = last;
fail:
    return st;
}
