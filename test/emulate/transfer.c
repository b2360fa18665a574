/* transfer.c - bulk and tensor copies into shared memory: they wait here until the scheduler lets them come, and
 * read their source then. */
#include <stdint.h>
#include <string.h>
#include "run.h"

enum { MOST = 4096 };

static transfer queue[MOST];
static int n_queue;

/* Positions of a walk along an axis. */
static int walk_of(const emulated_map *m, int axis)
{
    const int length = (int)m->dims[axis + 1] + m->upper[axis] - m->lower[axis];
    return (length + m->step[axis] - 1) / m->step[axis];
}

/* Does it begin at a position of the walk? */
static bool begins(const transfer *t)
{
    const emulated_map *m = &t->map;
    bool is = t->at[m->rank - 1] >= 0;

    for (int axis = 0; axis < m->rank - 2; axis++) {
        const int from = t->at[axis + 1] - m->lower[axis];
        is = is && from >= 0 && from % m->step[axis] == 0 && from / m->step[axis] < walk_of(m, axis);
    }
    return is;
}

static const char *check_box(transfer *t)
{
    const emulated_map *m = &t->map;

    t->bytes = m->element;
    for (unsigned d = 0; d < (m->walks ? 2 : m->rank); d++) t->bytes *= m->box[d];
    if (m->walks && !begins(t)) return "pixels that begin outside of their map's box";
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
static void copy_row(char *dst, const emulated_map *m, const int at[5], unsigned row)
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
        int at[5] = {t->at[0]};
        for (unsigned d = 1, rest = row; d < m->rank; rest /= m->box[d], d++)
            at[d] = t->at[d] + (int)(rest % m->box[d]);
        copy_row(t->dst + (size_t)row * row_bytes, m, at, row);
    }
}

static void copy_pixels(const transfer *t)
{
    const emulated_map *m = &t->map;
    const unsigned row_bytes = m->box[0] * m->element;
    const int axes = m->rank - 2;
    int now[5];

    memcpy(now, t->at, sizeof now);
    for (unsigned row = 0; row < m->box[1]; row++) {
        int at[5], axis = 0;
        memcpy(at, now, sizeof at);
        for (int i = 0; i < axes; i++) at[i + 1] += t->off[i];
        copy_row(t->dst + (size_t)row * row_bytes, m, at, row);
        for (; axis < axes; axis++) {
            now[axis + 1] += m->step[axis];
            if ((now[axis + 1] - m->lower[axis]) / m->step[axis] < walk_of(m, axis)) break;
            now[axis + 1] = m->lower[axis];
        }
        now[axes + 1] += axis == axes;
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
        (t.map.walks ? copy_pixels : copy_box)(&t);
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
 * swizzled box no longer than 128 bytes; of walks corners of 8 bits, or with three axes of 5, and steps of at most
 * 8. */
CUresult device_tensor_map(void *out, const device_tensor *t)
{
    emulated_map m = {.base = t->base,
                      .element = (unsigned char)t->element,
                      .rank = (unsigned char)t->rank,
                      .swizzle = t->swizzle,
                      .walks = t->lower != NULL};
    bool good = t->rank >= (m.walks ? 4 : 1) && t->rank <= (m.walks ? 5 : 4) && (uintptr_t)t->base % 16 == 0 &&
                t->box[0] * t->element % 16 == 0;

    _Static_assert(sizeof m <= sizeof(CUtensorMap), "a map has room for ours");
    good = good && (!t->swizzle || t->box[0] * t->element <= 128);
    for (unsigned d = 0; d < t->rank && good; d++) {
        m.dims[d] = t->dims[d];
        if (d) m.strides[d - 1] = t->strides[d - 1];
        good = t->dims[d] && (!d || t->strides[d - 1] % 16 == 0);
    }
    for (unsigned d = 0; d < (m.walks ? 2 : t->rank) && good; d++) {
        m.box[d] = t->box[d];
        good = t->box[d] >= 1 && t->box[d] <= 256;
    }
    for (unsigned i = 0; m.walks && i < t->rank - 2 && good; i++) {
        const int most = t->rank == 5 ? 16 : 128;
        m.lower[i] = (short)t->lower[i];
        m.upper[i] = (short)t->upper[i];
        m.step[i] = (unsigned char)t->step[i + 1];
        good = t->lower[i] >= -most && t->lower[i] < most && t->upper[i] >= -most && t->upper[i] < most &&
               t->step[i + 1] >= 1 && t->step[i + 1] <= 8;
    }
    memcpy(out, &m, sizeof m);
    return good ? 0 : DEVICE_INVALID;
}
