/* cpuinfo.h - what this machine is: instruction sets, caches, cores, and how fast they are. */
#ifndef CVYI_CPUINFO_H
#define CVYI_CPUINFO_H

#include "../util/util.h"

typedef enum cpu_isa { CPU_PORTABLE, CPU_NEON, CPU_AVX2, CPU_AVX512, CPU_ISA_COUNT } cpu_isa;

/* The kernels of an area by instruction set: CPU_KERNELS(cvyi_gemm)[isa]; NULL if not built. */
#if defined(__x86_64__)
#define CPU_KERNELS(area)                                                                                          \
    {                                                                                                              \
        &area##_portable, NULL, &area##_avx2, &area##_avx512                                                       \
    }
#elif defined(__aarch64__)
#define CPU_KERNELS(area)                                                                                          \
    {                                                                                                              \
        &area##_portable, &area##_neon, NULL, NULL                                                                 \
    }
#else
#define CPU_KERNELS(area)                                                                                          \
    {                                                                                                              \
        &area##_portable, NULL, NULL, NULL                                                                         \
    }
#endif

const char *cvyi_isa_name(cpu_isa isa);
bool cvyi_isa_supported(cpu_isa isa);

/* The instruction set to use: CVY_ISA's, else the best. CVY_INVALID for an unknown word, CVY_UNSUPPORTED for a set
 * that this CPU (or its operating system) lacks. */
cvy_status cvyi_isa_choose(cpu_isa *out);

/* Rates are sustained ones, 1e9 per second. */
typedef struct machine {
    int threads; /* CPUs this process may use */
    cpu_isa isa;
    int64_t l1, l2, l3; /* data caches in bytes: l1 and l2 of one core, l3 of all that share it */
    double fma_gflops;  /* float FMA peak of one core, an FMA being two operations */
    double mem_gbps;    /* reading memory, all cores together */
    double l3_gbps;     /* reading the last cache, all cores together */
    bool measured;      /* false: estimates */
    bool elsewhere;     /* CVY_MACHINE's: what is planned for it is not run here */
} machine;

/* The machine to plan for: this one, with the instruction set of cvyi_isa_choose() and estimated rates, or that of
 * CVY_MACHINE, which is the same everywhere. */
cvy_status cvyi_machine_choose(machine *out);

/* This machine with measured rates. Measures once per process and instruction set (under 50 ms), even if several
 * threads ask; a rate that could not be measured stays an estimate. */
void cvyi_machine_measure(cpu_isa isa, machine *out);

/* The kernels the measurement runs, by instruction set (kernels/probe.c). */
typedef struct cpu_probe_kernels {
    int64_t flops_per_round;
    float (*fma)(int64_t rounds);                /* as many independent chains as the FMA pipes need */
    float (*read)(const float *data, int64_t n); /* touches all n floats; n a multiple of 64 */
} cpu_probe_kernels;
extern const cpu_probe_kernels cvyi_probe_portable, cvyi_probe_avx2, cvyi_probe_avx512, cvyi_probe_neon;

#endif
