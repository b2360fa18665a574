/* cache.c - see cache.h for the directory and the format. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "cache.h"

enum { HEADER_BYTES = 16 + 2 * SHA256_BYTES };
static const char magic[8] = {'C', 'V', 'Y', 'C', 'O', 'D', 'E', '1'};

void cvyi_cache_name(const cache_key *key, char name[CACHE_NAME_BYTES])
{
    for (int i = 0; i < SHA256_BYTES; i++) sprintf(name + 2 * i, "%02x", key->digest[i]);
    strcpy(name + 2 * SHA256_BYTES, ".code");
}

/* False: the cache is turned off, or there is no directory for it. */
static bool cache_path(char path[CACHE_PATH_BYTES])
{
    const char *chosen = cvyi_env(ENV_CACHE), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;

    if (chosen && strcmp(chosen, "off") == 0) return false;
    if (chosen)
        n = snprintf(path, CACHE_PATH_BYTES, "%s", chosen);
    else if (xdg && xdg[0] == '/') /* relative ones are to be ignored, says the XDG specification */
        n = snprintf(path, CACHE_PATH_BYTES, "%s/convoy", xdg);
    else if (home && home[0] == '/')
        n = snprintf(path, CACHE_PATH_BYTES, "%s/.cache/convoy", home);
    else
        return false;
    return n > 0 && n < CACHE_PATH_BYTES;
}

/* Makes the directory and what is missing above it. */
static void make_dirs(char *path)
{
    for (char *p = path + 1; *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        mkdir(path, 0700);
        *p = '/';
    }
    mkdir(path, 0700);
}

void cvyi_cache_place(char path[CACHE_PATH_BYTES])
{
    if (!cache_path(path)) path[0] = '\0';
}

int cvyi_cache_open(bool make)
{
    char path[CACHE_PATH_BYTES];
    struct stat info;
    int fd;

    if (!cache_path(path)) return -1;
    if (make) make_dirs(path);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        if (make) cvyi_log(1, "cache: %s: %s", path, strerror(errno));
        return -1;
    }
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && !(info.st_mode & (S_IWGRP | S_IWOTH))) return fd;
    cvyi_log(1, "cache: %s is not used: it must belong to this user, and no one else may have write access", path);
    close(fd);
    return -1;
}

static bool read_all(int fd, void *data, size_t bytes)
{
    char *p = data;
    while (bytes) {
        const ssize_t n = read(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *p = data;
    while (bytes) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        bytes -= (size_t)n;
    }
    return true;
}

static void make_header(unsigned char header[HEADER_BYTES], const cache_key *key, const void *payload, size_t size)
{
    sha256 s;

    memcpy(header, magic, sizeof magic);
    for (int i = 0; i < 8; i++) header[8 + i] = (unsigned char)((uint64_t)size >> (8 * i));
    memcpy(header + 16, key->digest, SHA256_BYTES);
    cvyi_sha256_start(&s);
    cvyi_sha256_add(&s, payload, size);
    cvyi_sha256_end(&s, header + 16 + SHA256_BYTES);
}

void *cvyi_cache_read(int fd, const cache_key *key, size_t *size)
{
    unsigned char header[HEADER_BYTES], expected[HEADER_BYTES];
    struct stat info;
    size_t bytes;
    void *payload;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) return NULL;
    if (info.st_size < HEADER_BYTES) return NULL;
    bytes = (size_t)info.st_size - HEADER_BYTES;
    payload = cvyi_alloc(bytes, 1);
    if (!payload) return NULL;
    if (read_all(fd, header, sizeof header) && read_all(fd, payload, bytes)) {
        make_header(expected, key, payload, bytes);
        if (memcmp(header, expected, sizeof header) == 0) {
            *size = bytes;
            return payload;
        }
    }
    cvyi_free(payload);
    return NULL;
}

/* Records that an entry was used, with at most one write per hour. */
static void mark_used(int fd)
{
    struct stat info;
    if (fstat(fd, &info) == 0 && time(NULL) - info.st_mtime > 3600) futimens(fd, NULL);
}

void *cvyi_cache_load(const cache_key *key, size_t *size)
{
    char name[CACHE_NAME_BYTES];
    const int dir = cvyi_cache_open(false);
    void *payload = NULL;
    int fd;

    if (dir < 0) return NULL;
    cvyi_cache_name(key, name);
    fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        payload = cvyi_cache_read(fd, key, size);
        if (!payload) cvyi_log(1, "cache: %s is damaged and will be replaced", name);
        if (payload) mark_used(fd);
        close(fd);
    }
    close(dir);
    return payload;
}

void cvyi_cache_store(const cache_key *key, const void *payload, size_t size)
{
    enum { BETWEEN = 16 }; /* entries, from one look at the size of all to the next */
    static atomic_uint counter;
    const unsigned number = atomic_fetch_add(&counter, 1);
    unsigned char header[HEADER_BYTES];
    char name[CACHE_NAME_BYTES], aside[64];
    const int dir = cvyi_cache_open(true);
    bool written;
    int fd;

    if (dir < 0) return;
    cvyi_cache_name(key, name);
    snprintf(aside, sizeof aside, "aside.%ld.%u", (long)getpid(), number);
    unlinkat(dir, aside, 0); /* left by a process of the same number that died */
    fd = openat(dir, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0) {
        make_header(header, key, payload, size);
        written = write_all(fd, header, sizeof header) && write_all(fd, payload, size);
        written = close(fd) == 0 && written;
        if (!written || renameat(dir, aside, dir, name) != 0) {
            cvyi_log(1, "cache: %s was not written: %s", name, strerror(errno));
            unlinkat(dir, aside, 0);
        }
    } else {
        cvyi_log(1, "cache: %s: %s", aside, strerror(errno));
    }
    close(dir);
    if (number % BETWEEN == 0) cvyi_cache_trim();
}
