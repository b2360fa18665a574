/* prepared.c - the contents of the prepared part of a plan's memory, as a text and its digest.
 *
 * Two plans may share prepared memory if every byte would be the same: the same parameters, the same arithmetic on
 * them, the same addresses, the same packing. The text lists all of that, a line for each value and each packed
 * weight. It contains the inputs' extents only if the packing depends on them, so plans of one network for
 * different batches have the same digest. Strides of parameters are not in it: they come with run(). */
#include <stdio.h>
#include <string.h>
#include "plan.h"

/* number: of a parameter among the parameters, in the order of run(). */
static void add_value(const cvy_plan *p, int v, int number, text *t)
{
    const value *at = &p->graph->values[v];
    cvyi_text_add(t, "%d [", v);
    for (int d = 0; d < at->shape.rank; d++) cvyi_text_add(t, " %lld", (long long)at->shape.dim[d]);
    cvyi_text_add(t, " ]%s %s = ", at->watched ? " watched" : "", cvyi_dtype_name(at->dtype));
    if (at->kind == VALUE_NODE) {
        const node *n = &p->graph->nodes[at->node];
        cvyi_print_node(p->graph, n, t);
        for (int a = 0; a < n->n_args; a++) cvyi_text_add(t, " %d", n->arg[a]);
        cvyi_text_add(t, " at %lld of %d\n", (long long)p->places[v].at, p->root[v]);
    } else {
        cvyi_text_add(t, "parameter %d\n", number);
    }
}

cvy_status cvyi_digest_prepared(cvy_plan *p)
{
    unsigned char digest[SHA256_BYTES];
    sha256 h;
    text t = {0};
    const int n = p->engine->lowers ? p->graph->n_values : 0;
    int params = 0;

    cvyi_text_add(&t, "%s %s\n%s\nprecision %d\n", CVY_VERSION, p->engine->name, p->machine.name,
                  (int)p->options.precision);
    for (int v = 0; v < n; v++) {
        const value *at = &p->graph->values[v];
        if (p->prepared[v] && (at->kind != VALUE_NODE || at->node >= 0)) add_value(p, v, params, &t);
        params += at->kind == VALUE_PARAM;
    }
    if (p->engine->packing) p->engine->packing(p, &t);
    cvyi_text_add(&t, "%lld bytes\n", (long long)p->prepared_bytes);
    if (t.failed) {
        cvyi_text_free(&t);
        return CVY_NO_MEMORY;
    }
    cvyi_log(3, "prepared part:\n%s", t.data);
    cvyi_sha256_start(&h);
    cvyi_sha256_add(&h, t.data, t.len);
    cvyi_sha256_end(&h, digest);
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(p->digest + 2 * i, 3, "%02x", digest[i]);
    cvyi_text_free(&t);
    return CVY_OK;
}
