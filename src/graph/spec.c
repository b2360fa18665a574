/* spec.c - attributes of a new node: defaults, and checks of what a caller sets. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "graph.h"

/* The default of an attribute from its text: "None", "True", "1", "1e-05", or the first of its words. */
static attr_value default_of(const attr_def *def)
{
    attr_value v = {0};
    if (!def->otherwise || !strcmp(def->otherwise, "None")) return v;
    v.count = 1;
    if (def->kind == ATTR_BOOL)
        v.i[0] = def->otherwise[0] == 'T';
    else if (def->kind == ATTR_NUMBER)
        v.f = cvyi_text_number(def->otherwise);
    else if (def->kind != ATTR_WORD)
        v.i[0] = strtoll(def->otherwise, NULL, 10);
    return v;
}

void cvyi_spec_init(node_spec *spec, op_id op)
{
    *spec = (node_spec){.op = op};
    for (int i = 0; i < MAX_ARGS; i++) spec->arg[i] = CVY_NONE;
    for (int i = 0; i < cvyi_ops[op].n_attrs; i++) spec->attr[i] = default_of(&cvyi_ops[op].attrs[i]);
}

/* Index of a word in "none|tanh", -1 if it is not there. */
static int word_index(const char *words, const char *word)
{
    const size_t len = strlen(word);
    int index = 0;
    for (const char *at = words; at; index++) {
        const char *bar = strchr(at, '|');
        const size_t n = bar ? (size_t)(bar - at) : strlen(at);
        if (n == len && !memcmp(at, word, n)) return index;
        at = bar ? bar + 1 : NULL;
    }
    return -1;
}

static cvy_status set_word(const op_info *op, const attr_def *def, const char *word, attr_value *out)
{
    int64_t number = -1;
    if (def->kind == ATTR_WORD)
        number = word_index(def->words, word);
    else if (def->kind == ATTR_PADDING && !strcmp(word, "same"))
        number = PAD_SAME;
    else if (def->kind == ATTR_PADDING && !strcmp(word, "valid"))
        number = PAD_VALID;
    else
        return cvyi_fail(CVY_INVALID, "%s: %s is a number%s, got '%s'", op->name, def->name,
                         def->kind == ATTR_PADDING ? ", 'same' or 'valid'" : "", word);
    if (def->kind == ATTR_WORD && number < 0)
        return cvyi_fail(CVY_INVALID, "%s: %s must be one of %s, got '%s'", op->name, def->name, def->words, word);
    out->count = 1;
    out->i[0] = number;
    return CVY_OK;
}

static cvy_status check_count(const op_info *op, const attr_def *def, int count)
{
    const bool spatial = def->kind == ATTR_SPATIAL || def->kind == ATTR_PADDING;
    if (count < 0 || count > CVY_MAX_RANK)
        return cvyi_fail(CVY_INVALID, "%s: %s has %d numbers, at most %d can be", op->name, def->name, count,
                         CVY_MAX_RANK);
    /* A required list may be empty: reshape to a tensor without dimensions. */
    if (count == 0 && !(def->required && def->kind == ATTR_DIMS) &&
        (!def->otherwise || strcmp(def->otherwise, "None")))
        return cvyi_fail(CVY_INVALID, "%s: %s must not be None", op->name, def->name);
    if (spatial && count > 1 && count != op->spatial)
        return cvyi_fail(CVY_INVALID, "%s: %s takes 1 or %d numbers, got %d", op->name, def->name, op->spatial,
                         count);
    if (!spatial && def->kind != ATTR_DIMS && count > 1)
        return cvyi_fail(CVY_INVALID, "%s: %s is one value, got %d", op->name, def->name, count);
    return CVY_OK;
}

static cvy_status set_numbers(const op_info *op, const attr_def *def, const cvy_attr *from, attr_value *out)
{
    const double limit = 9007199254740992.0; /* 2^53: whole numbers in a double are exact below */
    cvy_status st = check_count(op, def, from->count);

    for (int i = 0; !st && i < from->count; i++) {
        const double v = from->value[i];
        if (def->kind == ATTR_NUMBER)
            out->f = v;
        else if (!(fabs(v) < limit) || v != floor(v))
            st = cvyi_fail(CVY_INVALID, "%s: %s must be a whole number, got %g", op->name, def->name, v);
        else if (def->kind == ATTR_BOOL && v != 0 && v != 1)
            st = cvyi_fail(CVY_INVALID, "%s: %s must be True or False, got %g", op->name, def->name, v);
        else if (def->kind == ATTR_PADDING && v < 0)
            st = cvyi_fail(CVY_INVALID, "%s: %s must not be negative, got %g", op->name, def->name, v);
        else if (def->kind == ATTR_WORD)
            st = cvyi_fail(CVY_INVALID, "%s: %s must be one of %s, got %g", op->name, def->name, def->words, v);
        else
            out->i[i] = (int64_t)v;
    }
    out->count = from->count;
    return st;
}

cvy_status cvyi_spec_set(node_spec *spec, const cvy_attr *attr)
{
    const op_info *op = &cvyi_ops[spec->op];
    attr_value made = {.set = true};
    cvy_status st = CVY_OK;
    int i;

    if (!attr->name) return cvyi_fail(CVY_INVALID, "%s: an attribute has no name", op->name);
    for (i = 0; i < op->n_attrs && strcmp(op->attrs[i].name, attr->name); i++) continue;
    if (i == op->n_attrs) return cvyi_fail(CVY_INVALID, "%s: has no attribute '%s'", op->name, attr->name);
    if (attr->text)
        st = set_word(op, &op->attrs[i], attr->text, &made);
    else
        st = set_numbers(op, &op->attrs[i], attr, &made);
    if (!st) spec->attr[i] = made;
    return st;
}
