/* library.h - shared libraries that are found at run time. */
#ifndef CVYI_CUDA_LIBRARY_H
#define CVYI_CUDA_LIBRARY_H

#include "../util/util.h"

/* Opens the first library found, in this order:
 *   1. `path`, the one the environment names: then nothing else is tried
 *   2. one that this process has loaded already (a framework's)
 *   3. the directories handed over by cvyi_cuda_add_dir()
 *   4. the loader's own search
 *   5. lib64 and lib under CUDA_PATH and CUDA_HOME
 * `names` are the file names to try, best first, NULL after the last. On failure (CVY_NO_DEVICE) the message says
 * what was looked for and where. A library is never closed: its threads and handlers outlive us. */
cvy_status cvyi_library_open(const char *what, const char *variable, const char *path, const char *const *names,
                             void **out);

/* A directory to search, from the embedding language (the `nvidia` wheels next to torch). May be called at any time
 * before the libraries are opened; a known directory is not added again. */
cvy_status cvyi_cuda_add_dir(const char *dir);

#endif
