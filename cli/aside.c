/* aside.c - see aside.h. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "aside.h"

static const int fatal[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { N_FATAL = sizeof fatal / sizeof *fatal, TRIES = 1000, NAME_ROOM = 64 };

static aside *pending; /* files aside; changed while `fatal` signals are held back */

/* ---- signals ---- */

static void take_away(int number)
{
    for (const aside *a = pending; a; a = a->next) unlink(a->name);
    signal(number, SIG_DFL);
    raise(number);
}

/* Signals that are ignored (nohup) stay ignored. */
static void catch_signals(void)
{
    struct sigaction now, ours = {.sa_handler = take_away};
    sigemptyset(&ours.sa_mask);
    for (int i = 0; i < N_FATAL; i++)
        if (!sigaction(fatal[i], NULL, &now) && now.sa_handler == SIG_DFL) sigaction(fatal[i], &ours, NULL);
}

static void hold_signals(sigset_t *before)
{
    sigset_t held;
    sigemptyset(&held);
    for (int i = 0; i < N_FATAL; i++) sigaddset(&held, fatal[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

/* Renames the file or removes it, which takes it out of the list. */
static int settle(aside *a, bool commit)
{
    aside **link = &pending;
    sigset_t before;
    int st;

    hold_signals(&before);
    st = commit ? rename(a->name, a->path) : unlink(a->name);
    while (*link && *link != a) link = &(*link)->next;
    if (*link) *link = a->next;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

/* ---- files ---- */

/* In the folder of the path, so a rename is enough. */
static char *name_beside(const char *path)
{
    const char *slash = strrchr(path, '/');
    const size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    char *name = malloc(folder + NAME_ROOM);
    if (name) memcpy(name, path, folder), name[folder] = '\0';
    return name;
}

static void forget(aside *a)
{
    const int why = errno;
    if (a->file) fclose(a->file);
    free(a->name);
    free(a->path);
    *a = (aside){0};
    errno = why;
}

/* A new file under the first free name; existing files are not opened and links are not followed. */
static int create_beside(aside *a)
{
    const size_t folder = strlen(a->name);
    int fd = -1;

    errno = EEXIST;
    for (int i = 0; fd < 0 && errno == EEXIST && i < TRIES; i++) {
        snprintf(a->name + folder, NAME_ROOM, ".convoy.%ld.%d.part", (long)getpid(), i);
        fd = open(a->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    return fd;
}

/* The same; from now on a signal removes it. old: the file that it replaces, whose mode it gets; or NULL. */
static int open_beside(aside *a, const struct stat *old)
{
    sigset_t before;
    int fd;

    a->name = name_beside(a->path);
    if (!a->name) return -1;
    catch_signals();
    hold_signals(&before);
    fd = create_beside(a);
    if (fd >= 0) {
        a->next = pending;
        pending = a;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (fd >= 0 && old) (void)!fchmod(fd, old->st_mode & 0777);
    return fd;
}

/* Anything but a regular file. /dev/stdout is the open standard output, which appends under >>; opened again
 * it would be cut. */
static int open_in_place(const char *path)
{
    struct stat there, out;

    if (!stat(path, &there) && !fstat(STDOUT_FILENO, &out) && there.st_dev == out.st_dev &&
        there.st_ino == out.st_ino)
        return fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0666);
}

bool aside_open(aside *a, const char *path)
{
    struct stat old;
    const bool there = !lstat(path, &old), in_place = there && !S_ISREG(old.st_mode);
    int fd = -1;

    *a = (aside){.path = strdup(path)};
    if (a->path) fd = in_place ? open_in_place(path) : open_beside(a, there ? &old : NULL);
    if (fd >= 0) {
        a->file = fdopen(fd, "wb");
        if (a->file) return true;
        close(fd);
        aside_discard(a);
    } else {
        forget(a);
    }
    return false;
}

bool aside_finish(aside *a)
{
    FILE *file = a->file;
    const bool written = !ferror(file);
    a->file = NULL;
    return !fclose(file) && written;
}

bool aside_commit(aside *a)
{
    const bool done = !a->name || !settle(a, true);
    const int why = errno;
    if (!done) unlink(a->name);
    errno = why;
    forget(a);
    return done;
}

void aside_discard(aside *a)
{
    const int why = errno;
    if (a->name) settle(a, false);
    errno = why;
    forget(a);
}
