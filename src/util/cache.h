/* cache.h - entries on disk, named by the digest of everything they depend on.
 *
 * The directory is CVY_CACHE, else $XDG_CACHE_HOME/convoy, else $HOME/.cache/convoy; "off" means none. It is made
 * with mode 0700 and used only if it belongs to this user and no one else can write to it. One file per entry,
 * written to a temporary file and renamed, so readers and writers in any number of processes never see half of one:
 *
 *   8 bytes  "CVYCODE1"     the format
 *   8 bytes  size           of the payload, little-endian
 *   32 bytes key            the entry's name again: a renamed file is ignored
 *   32 bytes digest         SHA-256 of the payload
 *   payload
 *
 * The digest detects damage, not an attacker with the same user's rights. A cache that does not work only costs
 * time: no call fails, and problems are logged (CVY_DEBUG=1). The directory holds at most CVY_CACHE_MB megabytes;
 * least recently used entries are evicted first. A file's modification time is that of its last use, to the hour.
 */
#ifndef CVYI_CACHE_H
#define CVYI_CACHE_H

#include "util.h"
#include "sha256.h"

typedef struct cache_key {
    unsigned char digest[SHA256_BYTES];
} cache_key;

/* The payload, or NULL if there is no good entry. cvyi_free() it. */
void *cvyi_cache_load(const cache_key *key, size_t *size);
void cvyi_cache_store(const cache_key *key, const void *payload, size_t size);

/* The file name of an entry inside the directory. */
enum { CACHE_NAME_BYTES = 2 * SHA256_BYTES + 6, CACHE_PATH_BYTES = 1024 };
void cvyi_cache_name(const cache_key *key, char name[CACHE_NAME_BYTES]);

/* ---- the directory as a whole (cache_files.c) ---- */

typedef struct cache_file {
    char name[CACHE_NAME_BYTES];
    int64_t bytes;
    int64_t used; /* seconds since 1970 */
} cache_file;

/* All entries, the least recently used first; cvyi_free() the list. False: there is no cache. */
bool cvyi_cache_files(cache_file **out, int *n);
/* Does the entry still have the contents that were written? */
bool cvyi_cache_verify(const cache_file *file);
void cvyi_cache_remove(const cache_file *file);
/* Where the cache is, or would be; "" if none is wanted. */
void cvyi_cache_place(char path[CACHE_PATH_BYTES]);
int64_t cvyi_cache_limit(void); /* in bytes */
/* Makes room if the limit is exceeded. */
void cvyi_cache_trim(void);

/* ---- shared by the two files ---- */

/* A descriptor of the directory, or -1. */
int cvyi_cache_open(bool make);
/* The payload of an open entry; NULL if any byte has changed since it was written. */
void *cvyi_cache_read(int fd, const cache_key *key, size_t *size);

#endif
