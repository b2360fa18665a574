/* fixture.h - what the CUDA tests share: checks, the stand-in libraries, a cache directory of their own. */
#ifndef TEST_FIXTURE_H
#define TEST_FIXTURE_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "../../src/util/cache.h"
#include "../../src/cuda/launch.h"
#include "../standin/scratch.h"
#include "../standin/standin.h"

extern int checks, failures;
extern char cache_dir[SCRATCH_BYTES];

#define CHECK(condition, ...)                                                                                      \
    do {                                                                                                           \
        checks++;                                                                                                  \
        if (!(condition)) {                                                                                        \
            failures++;                                                                                            \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);                                        \
            fprintf(stderr, __VA_ARGS__);                                                                          \
            fputc('\n', stderr);                                                                                   \
        }                                                                                                          \
    } while (0)

int each_entry(const char *dir, void (*visit)(const char *path, const char *name));

void remove_entry(const char *path, const char *name);

void clear_cache(void);

/* Libraries lie beside the test program's folder: the file "standin/libcuda.so.1", to be found through a variable.
 */
void use_library(const char *program, const char *file, const char *variable, char path[1024]);

/* Opens a stand-in, so that the test can steer it. */
standin *use_standin(const char *program, const char *file, const char *variable);

void use_cache(void);

/* A chain's plan for the stand-in's device; NULL, and a failure, where there is none. */
cvy_plan *chain_plan(const char *chain, cvy_precision precision, uint32_t seed);

int finish(const char *name);

#endif
