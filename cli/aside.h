/* aside.h - files that get their name when they are whole.
 *
 * A file is written under a temporary name in its own folder, and renamed at the end; a failure, or a signal that
 * ends the program, removes it and leaves the old file. A name that is not a regular file (a device, a pipe, a
 * symbolic link) is written to directly. */
#ifndef CONVOY_CLI_ASIDE_H
#define CONVOY_CLI_ASIDE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct aside {
    FILE *file;         /* to be written to; closed by aside_finish */
    char *path;         /* what it is to be called */
    char *name;         /* what it is called until then; NULL: it is written in place */
    struct aside *next; /* of those that a signal takes away */
} aside;

/* False, with errno set: nothing was made. */
bool aside_open(aside *a, const char *path);
/* Everything is written. False, with errno set: not everything could be; aside_discard is still to be called. */
bool aside_finish(aside *a);
bool aside_commit(aside *a); /* gives it its name; false, with errno set: it is gone */
void aside_discard(aside *a);

#endif
