/* test_cuda_cache.c - the disk cache: damage at any place, many writers, strangers' directories. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include "../support/fixture.h"

static standin *rtc;

/* ---- SHA-256: the examples of FIPS 180-4 and a length that crosses blocks ---- */

static void sha_of(const char *data, size_t bytes, char hex[65])
{
    unsigned char digest[SHA256_BYTES];
    sha256 s;

    cvyi_sha256_start(&s);
    for (size_t i = 0; i < bytes; i += 7) cvyi_sha256_add(&s, data + i, bytes - i < 7 ? bytes - i : 7);
    cvyi_sha256_end(&s, digest);
    for (int i = 0; i < SHA256_BYTES; i++) sprintf(hex + 2 * i, "%02x", digest[i]);
}

static void digests(void)
{
    static const struct {
        const char *data, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    static char million[1000000];
    char hex[65];

    for (int i = 0; i < COUNT_OF(known); i++) {
        sha_of(known[i].data, strlen(known[i].data), hex);
        CHECK(strcmp(hex, known[i].hex) == 0, "%s", hex);
    }
    memset(million, 'a', sizeof million);
    sha_of(million, sizeof million, hex);
    CHECK(strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0") == 0, "%s", hex);
}

/* ---- one kernel, compiled or taken from the cache ---- */

static int compile_demo(jit_code *code, const char *option)
{
    const jit_request request = {
        .entry = "demo", .source = "pointwise.cu", .options = &option, .n_options = 1, .major = 9};
    const int before = rtc->compiles;
    const cvy_status st = cvyi_jit_compile(&request, code);

    CHECK(st == CVY_OK, "%s", cvy_last_error());
    CHECK(code->cached == (rtc->compiles == before), "cached %d", code->cached);
    return rtc->compiles - before;
}

static char entry_path[1024];
static void remember_entry(const char *path, const char *name)
{
    (void)name;
    snprintf(entry_path, sizeof entry_path, "%s", path);
}

static void damage(long position, int bits)
{
    const int fd = open(entry_path, O_RDWR);
    unsigned char c;

    if (pread(fd, &c, 1, position) == 1) {
        c ^= (unsigned char)bits;
        CHECK(pwrite(fd, &c, 1, position) == 1, "write");
    }
    close(fd);
}

static void check_recovers(const jit_code *good, const char *what, long where)
{
    jit_code again = {0};

    CHECK(compile_demo(&again, "-DX=1") == 1, "%s %ld was believed", what, where);
    CHECK(again.size == good->size && memcmp(again.cubin, good->cubin, good->size) == 0, "%s %ld", what, where);
    cvyi_jit_free(&again);
    CHECK(compile_demo(&again, "-DX=1") == 0, "%s %ld was not replaced", what, where);
    CHECK(again.size == good->size && memcmp(again.cubin, good->cubin, good->size) == 0, "%s %ld", what, where);
    cvyi_jit_free(&again);
    CHECK(each_entry(cache_dir, NULL) == 1, "%d files", each_entry(cache_dir, NULL));
}

static void damaged_entries_are_replaced(void)
{
    enum { PLACES = 1000 };
    jit_code good = {0};
    struct stat info;

    clear_cache();
    CHECK(compile_demo(&good, "-DX=1") == 1, "first");
    CHECK(each_entry(cache_dir, remember_entry) == 1 && stat(entry_path, &info) == 0, "one entry");
    CHECK((info.st_mode & 0777) == 0600, "mode %o", info.st_mode & 0777);
    for (long i = 0; i < PLACES; i++) {
        damage(i * info.st_size / PLACES, 1 << i % 8);
        check_recovers(&good, "byte", i * info.st_size / PLACES);
    }
    for (long size = 0; size < info.st_size; size += 401) {
        CHECK(truncate(entry_path, size) == 0, "truncate");
        check_recovers(&good, "cut at", size);
    }
    CHECK(truncate(entry_path, info.st_size + 1) == 0, "truncate");
    check_recovers(&good, "grown to", info.st_size + 1);
    cvyi_jit_free(&good);
}

static void keys_differ(void)
{
    jit_code one = {0}, two = {0};
    char other[1024];

    clear_cache();
    CHECK(compile_demo(&one, "-DX=1") == 1 && each_entry(cache_dir, remember_entry) == 1, "first");
    snprintf(other, sizeof other, "%s", entry_path);
    CHECK(compile_demo(&two, "-DX=2") == 1, "another option is another entry");
    CHECK(memcmp(one.cubin, two.cubin, one.size) != 0, "another option, the same code");
    cvyi_jit_free(&two);
    setenv("CVY_NVRTC_OPTION", "-DY=1", 1);
    CHECK(compile_demo(&two, "-DX=1") == 1, "an option of the environment is another entry");
    CHECK(memcmp(one.cubin, two.cubin, one.size) != 0, "an option of the environment, the same code");
    unsetenv("CVY_NVRTC_OPTION");
    cvyi_jit_free(&two);
    /* An entry under another entry's name is not believed. */
    clear_cache();
    CHECK(compile_demo(&two, "-DX=2") == 1 && each_entry(cache_dir, remember_entry) == 1, "only the second");
    cvyi_jit_free(&two);
    CHECK(rename(entry_path, other) == 0, "rename");
    CHECK(compile_demo(&two, "-DX=1") == 1, "an entry under another's name was believed");
    cvyi_jit_free(&one);
    cvyi_jit_free(&two);
}

static void many_writers(void)
{
    enum { WRITERS = 16, ROUNDS = 40, BYTES = 50000 };
    static char payload[BYTES];
    cache_key key = {{1, 2, 3}};
    size_t size = 0;
    char *read;
    int bad = 0;

    clear_cache();
    for (int i = 0; i < BYTES; i++) payload[i] = (char)(i * 7);
    for (int w = 0; w < WRITERS; w++) {
        if (fork()) continue;
        for (int r = 0; r < ROUNDS && !bad; r++) {
            cvyi_cache_store(&key, payload, sizeof payload);
            read = cvyi_cache_load(&key, &size);
            bad = !read || size != sizeof payload || memcmp(read, payload, size) != 0;
            cvyi_free(read);
        }
        _exit(bad);
    }
    for (int w = 0; w < WRITERS; w++) {
        int status = -1;
        wait(&status);
        CHECK(status == 0, "a writer read something that nobody wrote");
    }
    CHECK(each_entry(cache_dir, NULL) == 1, "%d files", each_entry(cache_dir, NULL));
    read = cvyi_cache_load(&key, &size);
    CHECK(read && size == sizeof payload && memcmp(read, payload, size) == 0, "the entry");
    cvyi_free(read);
}

static void directories(void)
{
    jit_code code = {0};
    char below[SCRATCH_BYTES + 32];
    struct stat info;

    clear_cache();
    chmod(cache_dir, 0777);
    CHECK(compile_demo(&code, "-DX=1") == 1 && each_entry(cache_dir, NULL) == 0, "a directory anybody may write");
    cvyi_jit_free(&code);
    chmod(cache_dir, 0700);
    setenv("CVY_CACHE", "off", 1);
    CHECK(compile_demo(&code, "-DX=1") == 1 && each_entry(cache_dir, NULL) == 0, "off");
    cvyi_jit_free(&code);
    unsetenv("CVY_CACHE");
    setenv("XDG_CACHE_HOME", cache_dir, 1);
    CHECK(compile_demo(&code, "-DX=1") == 1, "first");
    cvyi_jit_free(&code);
    CHECK(compile_demo(&code, "-DX=1") == 0, "second");
    cvyi_jit_free(&code);
    snprintf(below, sizeof below, "%s/convoy", cache_dir);
    CHECK(stat(below, &info) == 0 && (info.st_mode & 0777) == 0700, "mode");
    CHECK(each_entry(below, remember_entry) == 1, "one entry");
    /* A symbolic link in an entry's place is not followed. */
    char moved[SCRATCH_BYTES + 32];
    snprintf(moved, sizeof moved, "%s/moved", cache_dir);
    CHECK(rename(entry_path, moved) == 0 && symlink(moved, entry_path) == 0, "link");
    CHECK(compile_demo(&code, "-DX=1") == 1, "a link was followed");
    cvyi_jit_free(&code);
    each_entry(below, remove_entry);
    rmdir(below);
    setenv("CVY_CACHE", cache_dir, 1);
}

static void dumps(void)
{
    jit_code code = {0};
    char dir[SCRATCH_BYTES + 32], file[SCRATCH_BYTES + 96];
    static const char *const expected[] = {"pointwise.cu", "epilogue.cuh", "options.txt", "kernel.cubin"};

    snprintf(dir, sizeof dir, "%s/dump", cache_dir);
    setenv("CVY_DUMP", dir, 1);
    compile_demo(&code, "-DX=3");
    unsetenv("CVY_DUMP");
    snprintf(file, sizeof file, "%s/demo.sm_90", dir);
    for (int i = 0; i < COUNT_OF(expected); i++) {
        char path[SCRATCH_BYTES + 256];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", file, expected[i]);
        CHECK(stat(path, &info) == 0 && info.st_size > 0, "%s", path);
    }
    each_entry(file, remove_entry);
    rmdir(file);
    rmdir(dir);
    cvyi_jit_free(&code);
}

/* ---- a bound on all entries ---- */

static cache_key numbered(int i)
{
    cache_key key = {{0}};
    key.digest[0] = (unsigned char)i;
    return key;
}

static bool is_there(int i)
{
    const cache_key key = numbered(i);
    size_t size;
    void *payload = cvyi_cache_load(&key, &size);
    cvyi_free(payload);
    return payload != NULL;
}

/* Entry i was used i days after the first. */
static void date(int i)
{
    const cache_key key = numbered(i);
    const struct timespec times[2] = {{.tv_sec = 1000000 + 86400 * i}, {.tv_sec = 1000000 + 86400 * i}};
    char name[CACHE_NAME_BYTES], path[1200];

    cvyi_cache_name(&key, name);
    snprintf(path, sizeof path, "%s/%s", cache_dir, name);
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0, "%s", path);
}

static void keeps_its_size(void)
{
    enum { ENTRIES = 20, BYTES = 100000 };
    static const char payload[BYTES];
    cache_file *files = NULL;
    int n = 0;

    clear_cache();
    for (int i = 0; i < ENTRIES; i++) {
        const cache_key key = numbered(i);
        cvyi_cache_store(&key, payload, sizeof payload);
        date(i);
    }
    CHECK(is_there(3), "it is used again, and not the oldest from now on");
    setenv("CVY_CACHE_MB", "1", 1);
    cvyi_cache_trim();
    CHECK(cvyi_cache_files(&files, &n) && n == 9, "%d entries of 0.1 MB are left in 1 MB", n);
    for (int i = 0; i < ENTRIES; i++) CHECK(is_there(i) == (i == 3 || i >= ENTRIES - 8), "entry %d", i);
    for (int i = 0; i + 1 < n; i++) CHECK(files[i].used <= files[i + 1].used, "the order of entry %d", i);
    for (int i = 0; i < n; i++) CHECK(cvyi_cache_verify(&files[i]), "%s", files[i].name);
    cvyi_free(files);
    for (int i = 0; i < 3 * ENTRIES; i++) { /* stores look at the size by themselves, now and then */
        const cache_key key = numbered(i);
        cvyi_cache_store(&key, payload, sizeof payload);
    }
    CHECK(cvyi_cache_files(&files, &n) && n < 9 + 16, "%d entries", n);
    cvyi_free(files);
    unsetenv("CVY_CACHE_MB");
}

int main(int argc, char **argv)
{
    (void)argc;
    use_cache();
    rtc = use_standin(argv[0], "libnvrtc.so.13", "CVY_NVRTC_LIB");
    digests();
    damaged_entries_are_replaced();
    keys_differ();
    many_writers();
    directories();
    dumps();
    keeps_its_size();
    CHECK(cvyi_alloc_live() == 0, "%lld allocations", (long long)cvyi_alloc_live());
    return finish("cuda_cache");
}
