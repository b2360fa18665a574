/* test_cuda_hopper.c - the kernels for Hopper's tensor cores (wgmma, tensor and bulk copies, mbarriers, clusters,
 * words between blocks), run on the host by test/emulate, against the reference.
 *
 *   test_cuda_hopper [CHAIN...]      these chains, under every plan
 *
 * First the emulator itself: kernels that break the rules are found out. Then chains in both precisions, checked as
 * a GPU would be (test/support/check.h): bounds, guards, the same bits again and in any order of blocks, threads
 * and copies; a sample's bits at any position in the batch. */
#include "../support/emulated.h"
#include "../gpu/chain_list.h"

/* ---- the emulator ---- */

static const offence offences[] = {
    {"an mbarrier that nobody made", "__shared__ u64 b; if (at.lin == 0) mbar_wait(&b, 0);", "nobody made"},
    {"an arrival too many", "__shared__ u64 b; if (at.lin == 0) mbar_init(&b, 1), mbar_arrive(&b, 2);",
     "more arrivals"},
    {"a phase that nobody ends",
     "__shared__ u64 b; if (at.lin == 0) mbar_init(&b, 2), mbar_arrive(&b), mbar_wait(&b, 0);", "is stuck"},
    {"a copy that is not announced",
     "__shared__ u64 b; __shared__ __align__(16) float s[4]; if (at.lin == 0) {"
     "mbar_init(&b, 1); bulk_load(s, a.t[1].p, 16, &b); mbar_arrive(&b); mbar_wait(&b, 0); }",
     "under way"},
    {"a bulk copy to an odd address",
     "__shared__ u64 b; __shared__ __align__(16) float s[8];"
     "if (at.lin == 0) mbar_init(&b, 1), bulk_load(s + 1, a.t[1].p, 16, &b);",
     "not aligned"},
    {"a bulk copy of ten bytes",
     "__shared__ u64 b; __shared__ __align__(16) float s[8];"
     "if (at.lin == 0) mbar_init(&b, 1), bulk_load(s, a.t[1].p, 10, &b);",
     "whole 16 bytes"},
    {"a copy into a block that has ended",
     "__shared__ u64 b; __shared__ __align__(16) float s[4];"
     "if (at.lin == 0) mbar_init(&b, 1), mbar_arrive_expect(&b, 16), bulk_load(s, a.t[1].p, 16, &b);",
     "under way"},
    {"a copy that nobody waited for",
     "__shared__ u64 b; __shared__ __align__(16) float s[4]; if (at.lin == 0) {"
     "mbar_init(&b, 1); mbar_arrive_expect(&b, 16); bulk_load(s, a.t[1].p, 16, &b);"
     "a.t[0].p[0] = s[0]; mbar_wait(&b, 0); }",
     ""},
    {"a product that nobody waited for",
     "extern __shared__ __align__(128) char memory[]; if (blockIdx.x) return;"
     "for (int i = threadIdx.x; i < 8192; i += 256) ((float *)memory)[i] = 0.0f;"
     "__syncthreads(); float d[32]; for (float &v : d) v = CVY_NAN;"
     "wgmma_half(d, wgmma_desc(0, 64), wgmma_desc(0, 64), 0, cvy_f16()); wgmma_commit();"
     "wgmma_wait<1>(); a.t[0].p[at.lin] = d[0]; wgmma_wait<0>();",
     ""},
    {"an operand past the block's shared memory",
     "float d[32]; wgmma_half(d, wgmma_desc(0, 64), wgmma_desc(2047, 64), 0, cvy_f16()); wgmma_commit(); "
     "wgmma_wait<0>();",
     "reaches past"},
    {"lanes with different operands", "float d[32]; wgmma_half(d, wgmma_desc(threadIdx.x, 64), 0, 0, cvy_f16());",
     "different operands"},
    {"half a warp multiplies", "float d[32]; if (threadIdx.x % 32 < 16) wgmma_half(d, 0, 0, 0, cvy_f16());",
     "is stuck"},
    {"words that never come", "if (at.lin == 0) while (*(volatile float *)a.t[1].p == 0.0f) __nanosleep(20);",
     "nothing happens"},
};

/* ---- chains ---- */

/* Small; of the three blocks each of the emulator's four multiprocessors has more strips than any ring has places.
 */
static const char *const small[] = {
    /* the three blocks: folded, recomputed, kept; a strip of one tile; tiles in halves */
    "x[21,8,10,12] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[21,8,5,12] | conv2d(64,3) @c | group_norm(16) | tanh | hardswish | add(@c) | logsumexp(1,keepdim=True)",
    "x[22,8,6,12] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    "x[2,8,10,128] | conv2d(40,3) @c | group_norm(8) | tanh | add(@c) | sub(200) | logsumexp(1)",
    "x[2,8,8,12] | conv2d(96,3) @c | mul(s[96,1,1]) | group_norm(8) | add(@c) | relu",
    "x[2,8,8,12] | conv2d(32,3) | group_norm(8) | add(r[32,6,10]) | relu",
    "x[3,8,11,13] | conv2d(48,3) | group_norm(3) | max_pool2d(2) | relu",
    /* streamed weights; stride 2 */
    "x[1,72,9,12] | conv2d(64,3) | relu",
    "x[1,72,5,12] | conv2d(250,3) | relu",
    "x[2,72,5,12] | conv2d(130,3) | logsumexp(1)",
    "x[1,128,7,7] | conv2d(72,3) | group_norm(8) | silu",
    "x[2,16,13,15] | conv2d(40,3,stride=2,padding=1) | hardswish | min(1)",
    "x[2,3,16,16] | conv2d(64,7,stride=2,padding=3) | batch_norm | relu | max_pool2d(2)",
    "x[2,8,40] | conv1d(64,5) | instance_norm | silu",
    /* whole rows by copies: an end inside 16 bytes, a stage with a slice too many, rows below the image */
    "x[3,3,11,13] | conv2d(48,5,padding=2) | group_norm(3) | silu",
    "x[3,24,9,17] | conv2d(48,3,padding=1) | relu",
    "x[3,9,13,17] | conv2d(48,5,stride=2) | group_norm(16)",
    "x[1,13,7,9] | conv2d(80,3,padding=1) | max(1)",
    /* matrix products, with and without clusters */
    "x[70,132] | linear(72) | gelu",
    "x[130,100] | matmul(w[100,140]) | silu",
};
/* Where blocks may not wait for each other, statistics and results are launches of their own. */
static const char *const alone[] = {
    "x[21,8,10,12] | conv2d(64,3) | group_norm(16) | mul(scale[64,1,1]) | max_pool2d(4) | clamp(0,1)",
    "x[9,8,9,16] | conv2d(32,3) | add(bias[32,1,1]) | mul(scale[32,1,1]) | sigmoid | group_norm(8)",
    "x[3,8,7,66] | conv2d(64,3) | group_norm(16) | tanh | logsumexp(1)",
};
static const char *const *listed = small;
static int n_listed = COUNT_OF(small), every;

/* What their plans have between them, in the first round and where blocks may not wait for each other. */
static const need needs[] = {
    {"matmul_tc.cu", -1, NULL, 0},    {"CLUSTER_M", 2, NULL, 0},       {"CLUSTER_N", 2, NULL, 0},
    {"TC_PASS", 0, "TC_SINK", 0},     {"TC_PASS", 0, "TC_SINK", 1},    {"TC_PASS", 0, "TC_SINK", 2},
    {"TC_PASS", 1, "TC_SINK", 0},     {"TC_PASS", 1, "TC_SINK", 1},    {"TC_PASS", 1, "TC_SINK", 2},
    {"TC_PASS", 2, "TC_SINK", 0},     {"TC_PASS", 2, "TC_SINK", 2},    {"TC_ROWS", 1, "TC_PRODUCTS", 1},
    {"TC_ROWS", 1, "TC_PRODUCTS", 3}, {"TC_TMA", 1, "TC_PRODUCTS", 1}, {"TC_TMA", 1, "TC_PRODUCTS", 3},
    {"TC_TMA", 0, "TC_ROWS", 0},      {"TC_FLAT", 1, NULL, 0},         {"TC_ROWSM", 2, NULL, 0},
    {"TC_STRIDE", 2, NULL, 0},        {"streamed", 1, "TC_PASS", 0},   {"streamed", 1, "TC_PASS", 1},
    {"TC_TILE", 128, "TC_SINK", 2},   {"TC_SHARE", 2, NULL, 0},        {"TC_SHARE", 3, "TC_SINK", 2},
    {"TC_SHARE", 4, "TC_SINK", 0},
};
static const need needs_alone[] = {
    {"TC_PASS", 4, "TC_SINK", 0},
    {"TC_PASS", 4, "TC_SINK", 1},
    {"TC_PASS", 4, "TC_SINK", 2},
};

/* ---- values of every size, and far from zero ---- */

static const value_range ranges[] = {
    {0, 1, 0},       {1000, 1, 1024},  {1e-30, 1e-31, 0x1p-100}, {-1000, 1, -1024},
    {0.5, 0.5, 0.5}, {1e30, 1e29, 0},  {-2e-3, 1e-3, -0x1p-9},   {3e-38, 1e-39, 0x1p-125},
    {2e36, 1e36, 0}, {6e4, 10, 65536}, {1e-3, 1e3, 0},
};

/* Two factors that are rounded to 11 bits, and sums of float32. */
static void take_ranges(const gpu *u)
{
    const rounding by = {0x1p-20, 0x1p-10};
    planned t;

    planned_open(&t, "x[11,8,20,24] | conv2d(48,3,bias=False)", CVY_FLOAT32, &plan_kinds[0], CVY_TF32);
    check_ranges(u, &t, ranges, COUNT_OF(ranges), &by);
    planned_close(&t);
}

static void take_item(const gpu *u, int item)
{
    const bool quick = getenv("CONVOY_TEST_QUICK") != NULL;
    const int at = (item - 1) / 2;
    const cvy_precision precision = (item - 1) % 2 ? CVY_TF32 : CVY_FP32;
    int plans = PLAN_LIKED | PLAN_SECOND_TILE | PLAN_RANDOM;

    if (quick && item % 5)
        return; /* the emulator is never built in other ways: little new to be seen of it there */
    if (item == 0) {
        for (int i = 0; i < COUNT_OF(offences); i++) check_offence(u, &offences[i]);
        return;
    }
    if (item == 1 + 2 * n_listed) {
        take_ranges(u);
        return;
    }
    if (every || !strstr(listed[at], "conv")) plans = EVERY_PLAN; /* clusters are the last tiles */
    check_listed(u, listed[at], precision, plans);
    check_positions(u, listed[at], precision);
    note_needs(listed[at], precision, plans, needs, COUNT_OF(needs));
}

static void take_alone(const gpu *u, int item)
{
    const cvy_precision precision = item % 2 ? CVY_TF32 : CVY_FP32;
    const int plans = PLAN_LIKED | PLAN_RANDOM;

    CHECK(!u->device->cooperative, "the emulator lets blocks wait for each other");
    check_listed(u, alone[item / 2], precision, plans);
    note_needs(alone[item / 2], precision, plans, needs_alone, COUNT_OF(needs_alone));
}

int main(int argc, char **argv)
{
    const bool quick = getenv("CONVOY_TEST_QUICK") != NULL;

    if (argc > 1) listed = (const char *const *)argv + 1, n_listed = argc - 1, every = 1;
    use_emulator(argv[0]);
    setenv("CVY_EMULATE_ARCH", "90", 1);
    share_out(1 + 2 * n_listed + !every, take_item);
    if (!every && !quick) {
        CHECK(rotated >= 20, "only %d chains of samples apart", rotated);
        check_needs(needs, COUNT_OF(needs));
        setenv("CVY_EMULATE_ALONE", "1", 1);
        share_out(2 * COUNT_OF(alone), take_alone);
        check_needs(needs_alone, COUNT_OF(needs_alone));
    }
    return finish("cuda_hopper");
}
