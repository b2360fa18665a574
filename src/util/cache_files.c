/* cache_files.c - the cache's directory as a whole: its entries, its size, and room for new ones. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cache.h"

/* The key that a file's name encodes; false: no entry has such a name. */
static bool key_of(const char *name, cache_key *key)
{
    static const char digits[] = "0123456789abcdef";

    if (strlen(name) != CACHE_NAME_BYTES - 1 || strcmp(name + 2 * SHA256_BYTES, ".code") != 0) return false;
    for (int i = 0; i < SHA256_BYTES; i++) {
        const char *high = strchr(digits, name[2 * i]), *low = strchr(digits, name[2 * i + 1]);
        if (!high || !low) return false;
        key->digest[i] = (unsigned char)((high - digits) * 16 + (low - digits));
    }
    return true;
}

/* By last use, then by name, so the order is unique. */
static int compare(const void *a, const void *b)
{
    const cache_file *p = a, *q = b;
    return p->used != q->used ? (p->used < q->used ? -1 : 1) : strcmp(p->name, q->name);
}

static cache_file *grown(cache_file *list, int n)
{
    return n & (n - 1) ? list : cvyi_grow(list, n ? 2 * (size_t)n : 1, sizeof *list);
}

bool cvyi_cache_files(cache_file **out, int *n)
{
    const int fd = cvyi_cache_open(false);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *entry;
    struct stat info;
    cache_key key;

    *out = NULL;
    *n = 0;
    if (!dir) {
        if (fd >= 0) close(fd);
        return false;
    }
    while ((entry = readdir(dir))) {
        cache_file *list;
        if (!key_of(entry->d_name, &key) || fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!S_ISREG(info.st_mode) || !(list = grown(*out, *n))) continue;
        *out = list;
        strcpy(list[*n].name, entry->d_name);
        list[*n].bytes = info.st_size;
        list[(*n)++].used = info.st_mtime;
    }
    closedir(dir);
    if (*n) qsort(*out, (size_t)*n, sizeof **out, compare);
    return true;
}

bool cvyi_cache_verify(const cache_file *file)
{
    const int dir = cvyi_cache_open(false);
    const int fd = dir < 0 ? -1 : openat(dir, file->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    cache_key key;
    size_t size;
    void *payload = fd >= 0 && key_of(file->name, &key) ? cvyi_cache_read(fd, &key, &size) : NULL;
    const bool good = payload != NULL;

    cvyi_free(payload);
    if (fd >= 0) close(fd);
    if (dir >= 0) close(dir);
    return good;
}

void cvyi_cache_remove(const cache_file *file)
{
    const int dir = cvyi_cache_open(false);

    if (dir < 0) return;
    if (unlinkat(dir, file->name, 0) != 0 && errno != ENOENT)
        cvyi_log(1, "cache: %s: %s", file->name, strerror(errno));
    close(dir);
}

int64_t cvyi_cache_limit(void)
{
    return (int64_t)cvyi_env_int(ENV_CACHE_MB, 1024) * 1000000;
}

void cvyi_cache_trim(void)
{
    const int64_t limit = cvyi_cache_limit();
    cache_file *files = NULL;
    int64_t total = 0;
    int n = 0;

    cvyi_cache_files(&files, &n);
    for (int i = 0; i < n; i++) total += files[i].bytes;
    for (int i = 0; i < n && total > limit; i++) {
        cvyi_log(2, "cache: %s makes room", files[i].name);
        cvyi_cache_remove(&files[i]);
        total -= files[i].bytes;
    }
    cvyi_free(files);
}
