/* data.c - random tensors by seed.
 *
 * Element i of a tensor is a function of seed, tensor name and i alone, so a tensor does not change when another is
 * added. Inputs are what --data says. Parameters are drawn as PyTorch's modules start out, or near it, so that
 * values stay of order one through a deep chain:
 *
 *   weights of producers and biases   uniform in +-1/sqrt(fan-in), a bias as for 64 terms
 *   weights of norms                  1/2 to 3/2, every fourth negative (rewrites must mind the sign)
 *   running_var                       1/2 to 3/2
 *   everything else                   standard normal
 *
 * --data integer makes all of them whole, small numbers, exact in float32 through sums and products. */
#include <math.h>
#include <string.h>
#include "../src/util/half.h"
#include "cli.h"

/* Finaliser of MurmurHash3 with the constants of Stafford's variant 13: every bit depends on every bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(uint64_t stream, int64_t i)
{
    return mix(stream + (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15));
}

static uint64_t stream_of(const char *name, uint64_t seed)
{
    uint64_t h = mix(seed + 1);
    for (const char *c = name; *c; c++) h = mix(h ^ (unsigned char)*c);
    return h;
}

/* [0, 1) in steps of 2^-24, as torch.rand draws them. */
static double unit(uint64_t bits)
{
    return (double)(bits >> 40) * 0x1p-24;
}

/* Box and Muller; the first factor's argument is in (0, 1]. */
static double normal(uint64_t bits)
{
    const double u = ((double)(bits >> 32) + 1) * 0x1p-32, v = (double)(uint32_t)bits * 0x1p-32;
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

static double special(uint64_t bits)
{
    static const double values[] = {NAN, INFINITY, -INFINITY, -0.0, 0.0, 0x1p-149, -0x1.8p-130, 0x1p-126};
    return bits >> 8 & 31 ? 2 * unit(bits) - 1 : values[bits & 7];
}

static double whole(uint64_t bits)
{
    return (double)(int)(bits >> 60 & 7) - 3; /* -3 ... 4 */
}

typedef struct rule {
    const char *suffix; /* of the parameter's name */
    double low, high;   /* uniform between them */
    bool fan_in;        /* divided by sqrt(elements per first index) */
    bool signs;         /* every fourth negative */
} rule;

static const rule *rule_of(const cvy_tensor *t)
{
    static const rule producer = {".weight", -1, 1, true, false}, norm = {".weight", 0.5, 1.5, false, true};
    static const rule others[] = {
        {".bias", -0.125, 0.125, false, false},
        {".other", -1, 1, true, false},
        {".running_var", 0.5, 1.5, false, false},
    };
    const char *dot = strrchr(t->name, '.');
    if (!dot) return NULL;
    if (!strcmp(dot, ".weight")) return strstr(t->name, "norm") || t->rank == 1 ? &norm : &producer;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(dot, others[i].suffix)) return &others[i];
    return NULL;
}

static void fill_by_rule(float *dst, int64_t count, const cvy_tensor *t, uint64_t stream)
{
    const rule *r = rule_of(t);
    const double fan = r && r->fan_in && t->dims[0] ? 1 / sqrt(fmax(1, (double)count / (double)t->dims[0])) : 1;
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = draw(stream, i);
        if (!r) {
            dst[i] = (float)normal(bits);
            continue;
        }
        dst[i] = (float)(fan * (r->low + (r->high - r->low) * unit(bits)));
        if (r->signs && !(bits & 3)) dst[i] = -dst[i];
    }
}

void data_fill(float *dst, const cvy_tensor *t, data_kind kind, uint64_t seed)
{
    const uint64_t stream = stream_of(t->name, seed);
    int64_t count = 1;
    for (int d = 0; d < t->rank; d++) count *= t->dims[d];
    if (kind == DATA_INTEGER) {
        const bool positive = strstr(t->name, ".running_var") != NULL;
        for (int64_t i = 0; i < count; i++) {
            const double v = whole(draw(stream, i));
            dst[i] = (float)(positive ? fabs(v) + 1 : v);
        }
    } else if (t->role == CVY_PARAM) {
        fill_by_rule(dst, count, t, stream);
    } else if (kind == DATA_NORMAL) {
        for (int64_t i = 0; i < count; i++) dst[i] = (float)normal(draw(stream, i));
    } else if (kind == DATA_SPECIAL) {
        for (int64_t i = 0; i < count; i++) dst[i] = (float)special(draw(stream, i));
    } else {
        for (int64_t i = 0; i < count; i++) dst[i] = (float)unit(draw(stream, i));
    }
    for (int64_t i = 0; t->dtype != CVY_FLOAT32 && i < count; i++) {
        const cvy_dtype dtype = (cvy_dtype)t->dtype;
        dst[i] = cvyi_widen(dtype, cvyi_narrow(dtype, dst[i]));
    }
}

/* The next number of the dtype away from zero, or towards it; from zero the least one. */
static float neighbour(cvy_dtype dtype, float x, bool away)
{
    if (dtype == CVY_FLOAT32) return nextafterf(x, away ? copysignf(INFINITY, x) : 0);
    const uint16_t word = cvyi_narrow(dtype, x);
    return cvyi_widen(dtype, (uint16_t)(away ? word + 1 : word & 0x7fff ? word - 1 : word));
}

/* As float32 or the dtype holds it (what is beyond its range is inf), moved by at most a unit in the last place. */
static float nudged(float x, cvy_dtype dtype, uint64_t bits)
{
    const float held = dtype == CVY_FLOAT32 ? x : cvyi_widen(dtype, cvyi_narrow(dtype, x));
    return isfinite(held) && bits % 3 ? neighbour(dtype, held, bits % 3 == 1) : held;
}

void data_nudge(float *data, int64_t count, cvy_dtype dtype, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) data[i] = nudged(data[i], dtype, draw(seed, i));
}

void data_nudge_double(double *data, int64_t count, cvy_dtype dtype, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) data[i] = nudged((float)data[i], dtype, draw(seed, i));
}
