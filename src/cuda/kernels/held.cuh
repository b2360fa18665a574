// held.cuh - a row that stays on chip between readings: in registers, and what does not fit there in shared
// memory.
//
// A row is ROW elements, neighbours in the order of the source; it is read once. LANES neighbouring threads share
// it, and a block has THREADS / LANES rows. Lanes take groups of WIDTH elements in turn, so a warp reads and
// writes whole lines:
//
//   thread -> data: lane l has groups l, l + LANES, ...: the first HELD of them in registers, PARKED in shared
//   memory,
//                   at [group][thread], private to the thread: no barriers
//
//   prologue and epilogue space: inner extents X1...X5      grid: x rows over THREADS / LANES
#ifndef CVY_HELD_CUH
#define CVY_HELD_CUH

#include "epilogue.cuh"

#ifndef X1
#define X1 1024
#define X2 1
#define X3 1
#define X4 1
#define X5 1
#endif
#ifndef ROW
#define ROW 1024
#endif
#ifndef NEIGHBOURS
#define NEIGHBOURS 4 // in a group: access_width(ROW)
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef HELD
#define HELD 8
#endif
#ifndef PARKED
#define PARKED 0
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef SRC_DENSE
#define SRC_DENSE 1 // all views are contiguous
#endif

constexpr int WIDTH = NEIGHBOURS, WARPS = LANES / 32;
constexpr long long INNER = (long long)X1 * X2 * X3 * X4 * X5;
static_assert(WIDTH == access_width(ROW), "what the host counts on");
static_assert(LANES <= 32 ? THREADS % 32 == 0 && 32 % LANES == 0 : LANES == THREADS && LANES % 32 == 0,
              "rows of a warp, or one of the block");
static_assert((long long)(HELD + PARKED) * LANES * WIDTH >= ROW && (HELD + PARKED - 1LL) * LANES * WIDTH < ROW,
              "the whole row, and no group that no lane has");

// Of many groups in registers, each with coordinates and strides of its own, code would be too long to be inlined.
#if SRC_DENSE || HELD * NEIGHBOURS <= 32
#define CVY_GROUP CVY_INLINE
#else
#define CVY_GROUP static __device__ __noinline__
#endif
CVY_GROUP void cvy_read_group(const cvy_args &a, cvy_index lin, float (&x)[WIDTH])
{
    cvy_at at[WIDTH];
    cvy_neighbours<WIDTH, X1, X2, X3, X4, X5>(lin, at);
    cvy_read<WIDTH>(a, at, x);
}
CVY_GROUP void cvy_write_group(const cvy_args &a, cvy_index lin, const float (&x)[WIDTH])
{
    cvy_at at[WIDTH];
    cvy_neighbours<WIDTH, X1, X2, X3, X4, X5>(lin, at);
    cvy_write<WIDTH>(a, at, x);
}

struct cvy_row {
    cvy_index first; // element
    bool there;
    int lane;
    float x[HELD][WIDTH];

    CVY_INLINE_MEMBER explicit cvy_row(const cvy_args &a)
    {
        const long long number = (long long)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
        first = (cvy_index)(number * ROW);
        there = LANES == THREADS || number < a.extent * INNER / ROW;
        lane = threadIdx.x % LANES;
    }

    // Where group g of the lane begins; is there one?
    CVY_INLINE_MEMBER int begin(int g) const
    {
        return (g * LANES + lane) * WIDTH;
    }
    CVY_INLINE_MEMBER bool has(int g) const
    {
        return there && (ROW % (LANES * WIDTH) == 0 || begin(g) < ROW);
    }
    CVY_INLINE_MEMBER int count() const
    {
        constexpr int ALL = HELD + PARKED - 1; // groups that every lane has
        return there ? ALL * WIDTH + (has(ALL) ? WIDTH : 0) : 0;
    }
    CVY_INLINE_MEMBER static float *parked(int g)
    {
        extern __shared__ __align__(16) float shared[]; // PARKED * THREADS * WIDTH floats
        return shared + (g * THREADS + threadIdx.x) * WIDTH;
    }

    // f(values of a group, its number) for all that are parked; those that f changes are parked again. Four loads
    // are in flight at once.
    template <bool CHANGES, class F> CVY_INLINE_MEMBER void each_parked(F f) const
    {
#pragma unroll 1
        for (int g = 0; g < PARKED; g += 4) {
            float y[4][WIDTH];
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (g + k < PARKED && has(HELD + g + k)) cvy_load(parked(g + k), y[k]);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (g + k >= PARKED || !has(HELD + g + k)) continue;
                f(y[k], HELD + g + k, k);
                if (CHANGES) cvy_store(parked(g + k), y[k]);
            }
        }
    }

    // All loads of registers are in flight before the first value is used.
    CVY_INLINE_MEMBER void read(const cvy_args &a)
    {
#pragma unroll
        for (int g = 0; g < HELD; g++)
            if (has(g)) cvy_read_group(a, first + begin(g), x[g]);
#pragma unroll 4
        for (int g = 0; g < PARKED; g++) {
            float y[WIDTH];
            if (!has(HELD + g)) continue;
            cvy_read_group(a, first + begin(HELD + g), y);
            cvy_store(parked(g), y);
        }
    }

    // f(value, one of four numbers in turn), known to the compiler
    template <class F> CVY_INLINE_MEMBER void look(F f) const
    {
#pragma unroll
        for (int g = 0; g < HELD; g++)
#pragma unroll
            for (int j = 0; j < WIDTH; j++)
                if (has(g)) f(x[g][j], (g * WIDTH + j) % 4);
        each_parked<false>([&](const float(&y)[WIDTH], int, int k) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) f(y[j], (k * WIDTH + j) % 4);
        });
    }

    // x = f(x), value by value
    template <class F> CVY_INLINE_MEMBER void change(F f)
    {
#pragma unroll
        for (int g = 0; g < HELD; g++)
#pragma unroll
            for (int j = 0; j < WIDTH; j++) x[g][j] = f(x[g][j]);
        each_parked<true>([&](float(&y)[WIDTH], int, int) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) y[j] = f(y[j]);
        });
    }

    // The epilogue of f(x), value by value.
    template <class F> CVY_INLINE_MEMBER void write(const cvy_args &a, F f) const
    {
#pragma unroll
        for (int g = 0; g < HELD; g++)
            if (has(g)) write_one(a, x[g], g, f);
        each_parked<false>([&](const float(&y)[WIDTH], int g, int) { write_one(a, y, g, f); });
    }
    template <class F>
    CVY_INLINE_MEMBER void write_one(const cvy_args &a, const float (&y)[WIDTH], int g, F f) const
    {
        float z[WIDTH];
#pragma unroll
        for (int j = 0; j < WIDTH; j++) z[j] = f(y[j]);
        cvy_write_group(a, first + begin(g), z);
    }
};

// What all lanes of a row have, put together by `join`, which must be commutative: every lane then has the same
// bits. All threads of the block call it; `turn` tells calls apart that follow each other.
template <int TURN, class T, class F> CVY_INLINE T cvy_over_row(T mine, F join)
{
#pragma unroll
    for (int by = (LANES < 32 ? LANES : 32) / 2; by; by /= 2)
        mine = join(mine, __shfl_xor_sync(0xffffffffu, mine, by));
    if (LANES <= 32) return mine;
    __shared__ T of_warp[WARPS ? WARPS : 1];
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = of_warp[threadIdx.x % (WARPS ? WARPS : 1)];
#pragma unroll
    for (int by = WARPS / 2; by; by /= 2) mine = join(mine, __shfl_xor_sync(0xffffffffu, mine, by));
    return mine;
}

#endif
