/* scratch.h - where tests, stand-ins and the emulator put what they make: under TMPDIR, else where the system says.
 */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <stdio.h>
#include <stdlib.h>

enum { SCRATCH_BYTES = 256 };

/* "FOLDER/convoy-WHAT.XXXXXX", for mkstemp() and mkdtemp(). */
static inline char *scratch_name(char name[SCRATCH_BYTES], const char *what)
{
    const char *folder = getenv("TMPDIR");

    snprintf(name, SCRATCH_BYTES, "%s/convoy-%s.XXXXXX", folder && *folder ? folder : P_tmpdir, what);
    return name;
}

#endif
