/* test_cuda_emulate.c - the CUDA engine's kernels, run on the host by test/emulate, against the reference.
 *
 *   test_cuda_emulate [GRAPHS [SEED]]      random graphs of each flavour, the first one's seed
 *
 * First the emulator itself: kernels that break the rules are found out. Then the chains of test/gpu and random
 * graphs, as a GPU would be checked (test/support/check.h): bounds, strides, guards, the same bits again and in any
 * order of blocks and threads; a sample's bits at any position in the batch. Work is shared out among processes.
 */
#include "../support/emulated.h"
#include "../support/check_random.h"
#include "../gpu/chain_list.h"

enum { LISTED = COUNT_OF(chains) };
static int graphs = 24; /* CONVOY_TEST_LONG: 80 */
static uint64_t first_seed = 1;

static const offence offences[] = {
    {"a barrier that half of the threads miss", "if (threadIdx.x % 2) __syncthreads();", "is stuck"},
    {"a barrier here, a shuffle there",
     "if (threadIdx.x % 64 < 32) __syncthreads(); else __shfl_sync(0xffffffffu, t0, 3);", "is stuck"},
    {"a shuffle without all of its lanes", "if (threadIdx.x % 32 < 9) __shfl_down_sync(0xffffffffu, t0, 1);",
     "is stuck"},
    {"a lane outside its mask", "__shfl_sync(0xffu, t0, 0);", "mask"},
    {"a write far away", "a.t[0].p[at.lin + 4096] = t0;", "touches"},
    {"a write next door", "a.t[0].p[at.lin + 3] = t0;", "after an allocation"},
    {"a write in front", "a.t[0].p[at.lin - 3] = t0;", "before an allocation"},
#if defined(__x86_64__) /* others go on with a zero, as GPUs do with some number */
    {"a division by a runtime zero", "a.t[0].p[at.lin] = (float)(7 / (a.extent - 2000));", "divides by zero"},
#endif
    {"a copy to an odd address", "__shared__ __align__(16) float s[264]; cvy_copy16(s + threadIdx.x, a.t[1].p);",
     "not aligned"},
    {"shared memory that nobody wrote", "__shared__ float s[256]; a.t[0].p[at.lin] = s[threadIdx.x];", ""},
    {"a copy that nobody waited for",
     "__shared__ float s[256]; cvy_copy4(s + threadIdx.x, a.t[1].p, true); cvy_copies_commit();"
     "cvy_copies_wait<1>(); a.t[0].p[at.lin] = s[threadIdx.x];",
     ""},
    {"a missing barrier",
     "__shared__ float s[256]; if (at.lin < 256) s[threadIdx.x] = t0; a.t[0].p[at.lin] = s[255 - threadIdx.x];",
     NULL},
    {"a race between blocks", "a.t[0].p[at.lin % 7] = t0;", NULL},
};

/* A norm of constants is its bias, however large they are. */
static void check_constants(const gpu *u)
{
    static const char *const constant[] = {"x[2,4,33,33] | clamp(1000.3,1000.3) | instance_norm(affine=False)",
                                           "x[2,4,33,33] | clamp(1000.3,1000.3) | group_norm(2,affine=False)",
                                           "x[2,4,5,3] | clamp(0.1,0.1) | batch_norm(training=True,affine=False)",
                                           "x[2,8,300,301] | clamp(-777.7,-777.7) | group_norm(2,affine=False)",
                                           "x[9,1023] | clamp(0.1,0.1) | layer_norm(1023,affine=False)",
                                           "x[9,24] | clamp(3e7,3e7) | layer_norm(24,affine=False)",
                                           "x[2,40001] | clamp(1000.3,1000.3) | layer_norm(40001,affine=False)"};
    for (int i = 0; i < COUNT_OF(constant); i++) {
        int64_t count = 0, zeros = 0;
        float *got;
        planned t;
        planned_open(&t, constant[i], CVY_FLOAT32, &plan_kinds[0], CVY_FP32);
        got = run_rig(u, &t.r, t.plan, &count);
        for (int64_t k = 0; got && k < count; k++) zeros += got[k] == 0;
        CHECK(got && zeros == count, "%lld of %lld are 0: %s", (long long)zeros, (long long)count, constant[i]);
        free(got);
        planned_close(&t);
    }
}

/* gelu's own form of erfc: floats of all magnitudes, in ULP of the result; float32's last digits on this host are
 * not the device's. */
static void check_gelu(const gpu *u)
{
    const uint32_t least = 0x30000000 /* 4.7e-10 */, most = 0x414c0000 /* 12.75 */;
    int64_t count = 0;
    double worst = 0;
    float *got, *x;
    planned t;

    planned_open(&t, "x[200001] | gelu", CVY_FLOAT32, &plan_kinds[0], CVY_FP32);
    x = t.r.t[0].origin;
    for (uint32_t i = 0; i < 200001; i++) {
        const uint32_t bits = (least + (uint32_t)((uint64_t)(most - least) * i / 200001)) | (i % 2 << 31);
        memcpy(&x[i], &bits, sizeof bits);
    }
    rig_reference(&t.r);
    got = run_rig(u, &t.r, t.plan, &count);
    for (int64_t i = 0; got && i < count; i++) {
        const double want = t.r.t[1].want[i], ulp = ldexp(1, ilogb(want) - 23);
        worst = fmax(worst, fabs(got[i] - want) / ulp);
    }
    CHECK(got && worst < 4.5, "gelu is %g ULP off", worst);
    free(got);
    planned_close(&t);
}

/* Tensors that begin at no multiple of 16 bytes are not touched four elements at a time, and give the same bits. */
static void check_addresses(const gpu *u)
{
    static const char *const chains_of_two[] = {"x[9,64] | relu | layer_norm(64,affine=False) | gelu",
                                                "x[5,4,24] | softmax(2) | neg", "x[1003] | gelu | tanh",
                                                "x[3,8,6] | add(1) | reshape(12,12) | square"};
    for (int i = 0; i < COUNT_OF(chains_of_two); i++) {
        float y[2][1003];
        planned t;
        planned_open(&t, chains_of_two[i], CVY_FLOAT32, &plan_kinds[0], CVY_FP32);
        for (size_t off = 0; off < 2; off++)
            run_shifted(u, t.plan, t.r.t[0].origin, (size_t)t.r.t[0].count * sizeof **y, off * sizeof **y, y[off]);
        CHECK(rig_same_bits(y[0], y[1], t.r.t[0].count), "other bits at another address: %s", chains_of_two[i]);
        planned_close(&t);
    }
}

/* ---- all of it ---- */

static void take_item(const gpu *u, int item)
{
    const int n_listed = LISTED, quick = getenv("CONVOY_TEST_QUICK") ? 6 : 1;

    if (item == 0) {
        /* the emulator is never built in other ways: nothing new to be seen of it there */
        for (int i = 0; i < COUNT_OF(offences) && quick == 1; i++) check_offence(u, &offences[i]);
        check_constants(u);
        check_gelu(u);
        check_addresses(u);
    } else if (item <= n_listed) {
        if (item % quick) return;
        check_listed(u, chains[item - 1], CVY_FP32, PLAN_LIKED | PLAN_ONE_BY_ONE | PLAN_RANDOM);
        check_positions(u, chains[item - 1], CVY_FP32);
    } else {
        const int number = (item - n_listed - 1) / 3, kind = (item - n_listed - 1) % 3;
        const bool liked = number % 3 == 0; /* one plan each: of three graphs two at random */
        if (number % quick) return;
        CHECK(check_random(u, CVY_FLOAT32, (flavour)kind, first_seed + (uint64_t)number,
                           liked ? PLAN_LIKED : PLAN_RANDOM),
              "graph %d, flavour %d", number, kind);
    }
}

int main(int argc, char **argv)
{
    if (test_long()) graphs = 80;
    if (argc > 1) graphs = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    use_emulator(argv[0]);
    share_out(1 + LISTED + 3 * graphs, take_item);
    CHECK(rotated >= (getenv("CONVOY_TEST_QUICK") ? 3 : 30), "only %d chains of samples apart", rotated);
    return finish("cuda_emulate");
}
