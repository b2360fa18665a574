/* transfer.c - bulk and tensor copies into shared memory: they wait here until the scheduler lets them come, and
 * read their source then. */
#include <stdint.h>
#include <string.h>
#include "run.h"

enum { MOST = 4096 };

static transfer queue[MOST];
static int n_queue;

static const char *check_box(transfer *t)
{
    const emulated_map *m = &t->map;

    t->bytes = m->element;
    for (unsigned d = 0; d < m->rank; d++) t->bytes *= m->box[d];
    if ((uintptr_t)t->dst % (m->swizzle ? 1024 : 128)) return "a tensor copy to an address that is not aligned";
    /* The manual does not say so; the device ends the launch with an illegal instruction. */
    return t->at[0] * (int)m->element % 16 ? "a tensor copy from an odd column" : NULL;
}

const char *transfer_check(transfer *t)
{
    if (n_queue == MOST) return "too many copies under way";
    if ((uintptr_t)t->barrier % 8) return "an mbarrier that is not aligned";
    if (!t->src) return check_box(t);
    if (t->bytes % 16 || !t->bytes) return "a bulk copy that is not of whole 16 bytes";
    return ((uintptr_t)t->dst | (uintptr_t)t->src) % 16 ? "a bulk copy that is not aligned" : NULL;
}

void transfer_add(const transfer *t)
{
    queue[n_queue++] = *t;
}

/* The row of a box at (y, z, n): elements outside of the tensor are zeros. Swizzled, 16-byte pieces of 128 bytes
 * change places by the number of the row. */
static void copy_row(char *dst, const emulated_map *m, const int at[4], unsigned row)
{
    const char *src = m->base;
    bool inside = true;

    for (unsigned d = 1; d < m->rank; d++) {
        inside = inside && at[d] >= 0 && (unsigned long long)at[d] < m->dims[d];
        src += at[d] * (long long)m->strides[d - 1];
    }
    for (unsigned i = 0; i < m->box[0]; i++) {
        const long long x = (long long)at[0] + i;
        const unsigned at_byte = i * m->element, piece = at_byte / 16 ^ (m->swizzle ? row % 8 : 0);
        char *to = dst + piece * 16 + at_byte % 16;
        if (inside && x >= 0 && (unsigned long long)x < m->dims[0])
            memcpy(to, src + x * m->element, m->element);
        else
            memset(to, 0, m->element);
    }
}

static void copy_box(const transfer *t)
{
    const emulated_map *m = &t->map;
    const unsigned row_bytes = m->box[0] * m->element, rows = t->bytes / row_bytes;

    for (unsigned row = 0; row < rows; row++) {
        int at[4] = {t->at[0]};
        for (unsigned d = 1, rest = row; d < m->rank; rest /= m->box[d], d++)
            at[d] = t->at[d] + (int)(rest % m->box[d]);
        copy_row(t->dst + (size_t)row * row_bytes, m, at, row);
    }
}

emulated_mbarrier *transfer_deliver(long long turn, bool now, unsigned *bytes)
{
    transfer t;
    int next = 0;

    for (int i = 1; i < n_queue; i++)
        if (queue[i].due < queue[next].due) next = i;
    if (!n_queue || (!now && queue[next].due > turn)) return NULL;
    t = queue[next];
    queue[next] = queue[--n_queue];
    if (!t.src)
        copy_box(&t);
    else
        memcpy(t.dst, t.src, t.bytes);
    *bytes = t.bytes;
    return t.barrier;
}

int transfer_drop(void)
{
    const int dropped = n_queue;
    n_queue = 0;
    return dropped;
}

/* ---- maps ---- */

/* What the driver asks of them: addresses and strides of whole 16 bytes, boxes of at most 256 each way, rows of a
 * swizzled box no longer than 128 bytes. */
CUresult device_tensor_map(void *out, unsigned element, unsigned rank, const void *base, const uint64_t *dims,
                           const uint64_t *strides, const unsigned *box, bool swizzle)
{
    emulated_map m = {.base = base, .element = element, .rank = rank, .swizzle = swizzle};
    bool good = rank >= 1 && rank <= 4 && (uintptr_t)base % 16 == 0 && box[0] * element % 16 == 0;

    _Static_assert(sizeof m <= sizeof(CUtensorMap), "a map has room for ours");
    good = good && (!swizzle || box[0] * element <= 128);
    for (unsigned d = 0; d < rank && good; d++) {
        m.dims[d] = dims[d];
        m.box[d] = box[d];
        if (d) m.strides[d - 1] = strides[d - 1];
        good = dims[d] && box[d] >= 1 && box[d] <= 256 && (!d || strides[d - 1] % 16 == 0);
    }
    memcpy(out, &m, sizeof m);
    return good ? 0 : DEVICE_INVALID;
}
