/* Fault injection into a child process.
 *
 * Loaded with LD_PRELOAD, it intercepts every call to the C library that changes files below one
 * folder: SQLite's calls and ours alike. It counts them and, as the environment says, kills the process before, after or in the middle
 * of the n-th one, lets it fail, or only records the calls.
 *
 *   SELVEDGE_LAB_ROOT    the folder; everything else passes untouched
 *   SELVEDGE_LAB_TRACE   the file of the recorded calls; see `record`
 *   SELVEDGE_LAB_ACKS    the file to which the child writes what it acknowledges; its lines are put into the trace in order
 *   SELVEDGE_LAB_MODE    before | after | half | error | short | shutdown; absent: only record. `shutdown` shuts down
 *                        the file system of the folder, and the process dies
 *   SELVEDGE_LAB_AT      the n of the n-th call, from 1
 *   SELVEDGE_LAB_ERRNO   which error
 *   SELVEDGE_LAB_STICKY  every later call of the same sort fails too
 *   SELVEDGE_LAB_LOOKS   the n-th reading call is meant: opening an existing file, reading, querying a length, listing a folder,
 *                        releasing a lock. Those are counted separately
 *
 * One call at a time: a mutex is held from counting a call to recording it, so the trace has the actual
 * order. Only waiting for a lock is outside of it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The kinds of calls, as the trace names them. */
enum { CREATE = 'c', WRITE = 'w', SYNC = 's', CUT = 't', RENAME = 'r', UNLINK = 'u', MKDIR = 'm', RMDIR = 'd', LINK = 'l',
       LOCK = 'k', OPEN = 'o', READ = 'R', STAT = 'S', LIST = 'L', UNLOCK = 'U', ACK = 'a' };

enum mode { WATCH, BEFORE, AFTER, HALF, ERROR, SHORT, SHUTDOWN };
enum verdict { GO, FAIL, HALVE_AND_DIE, HALVE };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], acks[PATH_MAX];
static size_t root_length;
static int trace = -1, sticky, at_looks, error_number = EIO;
static enum mode mode = WATCH;
static uint64_t at, count, looks;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static ssize_t raw_write(int fd, const void *bytes, size_t length) {
    REAL(write);
    return real(fd, bytes, length);
}

__attribute__((constructor)) static void begin(void) {
    const char *value;
    if ((value = getenv("SELVEDGE_LAB_ROOT"))) snprintf(root, sizeof root, "%s", value);
    root_length = strlen(root);
    if ((value = getenv("SELVEDGE_LAB_ACKS"))) snprintf(acks, sizeof acks, "%s", value);
    if ((value = getenv("SELVEDGE_LAB_AT"))) at = strtoull(value, NULL, 10);
    if ((value = getenv("SELVEDGE_LAB_ERRNO"))) error_number = atoi(value);
    sticky = getenv("SELVEDGE_LAB_STICKY") != NULL;
    at_looks = getenv("SELVEDGE_LAB_LOOKS") != NULL;
    if ((value = getenv("SELVEDGE_LAB_MODE")))
        mode = !strcmp(value, "before") ? BEFORE : !strcmp(value, "after") ? AFTER : !strcmp(value, "half") ? HALF
             : !strcmp(value, "error") ? ERROR : !strcmp(value, "short") ? SHORT
             : !strcmp(value, "shutdown") ? SHUTDOWN : WATCH;
    if ((value = getenv("SELVEDGE_LAB_TRACE"))) {
        __typeof__(&open) real = (__typeof__(&open))dlsym(RTLD_NEXT, "open");
        trace = real(value, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Ends the file system without flushing its journal: what was not synced is gone, as after a power cut. */
static void shut_down(void) {
    __typeof__(&open) real = (__typeof__(&open))dlsym(RTLD_NEXT, "open");
    uint32_t without_flush = 2;
    int fd = real(root, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || ioctl(fd, _IOR('X', 125, uint32_t), &without_flush) < 0) {
        dprintf(2, "the file system can't be shut down: %s\n", strerror(errno));
        _exit(9);
    }
    die();
}

/* The normalised path of a name; links are not resolved. */
static int path_of(int folder, const char *name, char *path) {
    if (!root_length || !name) return 0;
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else if (folder == AT_FDCWD) {
        if (!getcwd(path, PATH_MAX)) return 0;
        size_t length = strlen(path);
        snprintf(path + length, PATH_MAX - length, "/%s", name);
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, path, PATH_MAX - 1);
        if (length < 0) return 0;
        snprintf(path + length, PATH_MAX - length, "/%s", name);
    }
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* The current path of an open file; 2 for the file of acknowledgements. */
static int path_of_file(int fd, char *path) {
    if (!root_length) return 0;
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (acks[0] && !strcmp(path, acks)) return 2;
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int is_look(int kind) { return kind == OPEN || kind == READ || kind == STAT || kind == LIST || kind == UNLOCK; }

/* One record: a header of 40 bytes, then path, second path and data. */
struct header {
    uint32_t total;
    uint8_t kind, failed;
    uint16_t path, second;
    uint16_t none;
    int32_t fd;
    uint64_t count, offset, data;
} __attribute__((packed));

static void record(int kind, int failed, int fd, const char *path, const char *second, uint64_t offset, const void *data,
                   size_t length) {
    if (trace < 0) return;
    struct header header = {.kind = (uint8_t)kind, .failed = (uint8_t)failed, .fd = fd, .count = is_look(kind) ? looks : count, .offset = offset,
                            .data = length, .path = (uint16_t)strlen(path), .second = (uint16_t)strlen(second)};
    size_t total = sizeof header + header.path + header.second + length;
    header.total = (uint32_t)total;
    char *bytes = malloc(total);
    if (!bytes) die();
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, path, header.path);
    memcpy(bytes + sizeof header + header.path, second, header.second);
    if (length) memcpy(bytes + sizeof header + header.path + header.second, data, length);
    if (raw_write(trace, bytes, total) != (ssize_t)total) die();
    free(bytes);
}

/* Counts a call and decides what happens to it. */
static enum verdict judge(int kind) {
    if (is_look(kind)) {
        looks++;
        int is_now = at_looks && at && (looks == at || (sticky && mode == ERROR && looks > at && kind != UNLOCK));
        return !is_now ? GO : mode == ERROR ? FAIL : mode == SHORT && kind == READ ? HALVE : GO;
    }
    count++;
    if (at_looks) return GO;
    int is_now = count == at;
    if (sticky && mode == ERROR && count > at && at && kind != LOCK && kind != UNLINK && kind != RMDIR) is_now = 1;
    if (!is_now) return GO;
    switch (mode) {
    case BEFORE: die(); return GO;
    case HALF: if (kind == WRITE) return HALVE_AND_DIE; die(); return GO;
    case SHUTDOWN: shut_down(); return GO;
    case ERROR: return FAIL;
    case SHORT: return kind == WRITE ? HALVE : GO;
    default: return GO;
    }
}

static void done(void) {
    if (mode == AFTER && !at_looks && count == at) die();
}

/* Runs a call that answers with -1 on failure, between counting it and recording it. */
#define AROUND(kind, fd, path, second, offset, call)                                                  \
    do {                                                                                              \
        pthread_mutex_lock(&turn);                                                                    \
        int answer = -1, failure = 0;                                                                 \
        if (judge(kind) == FAIL) failure = error_number;                                              \
        else if ((answer = (call)) < 0) failure = errno;                                              \
        record(kind, failure != 0, fd, path, second, (uint64_t)(offset), NULL, 0);                    \
        done();                                                                                       \
        pthread_mutex_unlock(&turn);                                                                  \
        if (failure) errno = failure;                                                                 \
        return answer;                                                                                \
    } while (0)

static int raw_fstatat(int folder, const char *name, struct stat *found, int flags) {
    __typeof__(&fstatat) real = (__typeof__(&fstatat))dlsym(RTLD_NEXT, "fstatat");
    return real(folder, name, found, flags);
}

/* ---- opening ---- */

static int opened(int folder, const char *name, int flags, mode_t bits) {
    REAL(openat);
    char path[PATH_MAX];
    if (!path_of(folder, name, path)) return real(folder, name, flags, bits);
    pthread_mutex_lock(&turn);
    struct stat found;
    int makes = (flags & O_CREAT) && raw_fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) < 0;
    int cuts = (flags & O_TRUNC) && !makes;
    int kind = makes ? CREATE : cuts ? CUT : OPEN;
    int answer = -1, failure = 0;
    if (judge(kind) == FAIL) failure = error_number;
    else if ((answer = real(folder, name, flags, bits)) < 0) failure = errno;
    record(kind, failure != 0, answer, path, "", 0, NULL, 0);
    done();
    pthread_mutex_unlock(&turn);
    if (failure) errno = failure;
    return answer;
}

#define MODE_OF(flags)                                                                                \
    mode_t bits = 0;                                                                                  \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); bits = va_arg(rest, mode_t); va_end(rest); }

EXPORT int open(const char *name, int flags, ...) { MODE_OF(flags) return opened(AT_FDCWD, name, flags, bits); }
EXPORT int open64(const char *name, int flags, ...) { MODE_OF(flags) return opened(AT_FDCWD, name, flags, bits); }
EXPORT int openat(int folder, const char *name, int flags, ...) { MODE_OF(flags) return opened(folder, name, flags, bits); }
EXPORT int openat64(int folder, const char *name, int flags, ...) { MODE_OF(flags) return opened(folder, name, flags, bits); }
EXPORT int creat(const char *name, mode_t bits) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, bits); }
EXPORT int creat64(const char *name, mode_t bits) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, bits); }

/* ---- writing ---- */

static ssize_t raw_pwrite(int fd, const void *bytes, size_t length, off64_t offset) {
    REAL(pwrite64);
    return real(fd, bytes, length, offset);
}

static ssize_t put(int fd, const void *bytes, size_t length, off64_t offset, int positioned) {
    char path[PATH_MAX];
    int place = path_of_file(fd, path);
    if (!place) return positioned ? raw_pwrite(fd, bytes, length, offset) : raw_write(fd, bytes, length);
    pthread_mutex_lock(&turn);
    if (place == 2) {
        ssize_t answer = raw_write(fd, bytes, length);
        record(ACK, 0, fd, "", "", 0, bytes, length);
        pthread_mutex_unlock(&turn);
        return answer;
    }
    off64_t from = positioned ? offset : lseek64(fd, 0, SEEK_CUR);
    enum verdict verdict = judge(WRITE);
    size_t wanted = verdict == GO ? length : verdict == FAIL ? 0 : verdict == HALVE ? (length + 1) / 2 : length / 2;
    ssize_t answer = -1;
    int failure = verdict == FAIL ? error_number : 0;
    if (!failure) {
        answer = positioned ? raw_pwrite(fd, bytes, wanted, from) : raw_write(fd, bytes, wanted);
        if (answer < 0) failure = errno;
    }
    record(WRITE, failure != 0, fd, path, "", (uint64_t)from, bytes, answer > 0 ? (size_t)answer : 0);
    if (verdict == HALVE_AND_DIE) die();
    done();
    pthread_mutex_unlock(&turn);
    if (failure) errno = failure;
    return answer;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t length) { return put(fd, bytes, length, 0, 0); }
EXPORT ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) { return put(fd, bytes, length, offset, 1); }
EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) { return put(fd, bytes, length, offset, 1); }

static ssize_t put_pieces(int fd, const struct iovec *pieces, int number, off64_t offset, int positioned) {
    size_t length = 0, filled = 0;
    for (int i = 0; i < number; i++) length += pieces[i].iov_len;
    char *bytes = malloc(length ? length : 1);
    if (!bytes) { errno = ENOMEM; return -1; }
    for (int i = 0; i < number; i++) { memcpy(bytes + filled, pieces[i].iov_base, pieces[i].iov_len); filled += pieces[i].iov_len; }
    ssize_t answer = put(fd, bytes, length, offset, positioned);
    int failure = errno;
    free(bytes);
    errno = failure;
    return answer;
}

EXPORT ssize_t writev(int fd, const struct iovec *pieces, int number) { return put_pieces(fd, pieces, number, 0, 0); }
EXPORT ssize_t pwritev(int fd, const struct iovec *pieces, int number, off_t offset) { return put_pieces(fd, pieces, number, offset, 1); }
EXPORT ssize_t pwritev64(int fd, const struct iovec *pieces, int number, off64_t offset) { return put_pieces(fd, pieces, number, offset, 1); }

/* Copies inside the kernel could not be intercepted: they fail, so that the caller reads and writes instead. */
EXPORT ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t length, unsigned flags) {
    REAL(copy_file_range);
    char path[PATH_MAX];
    if (!path_of_file(out, path)) return real(in, from, out, to, length, flags);
    errno = ENOSYS;
    return -1;
}
EXPORT ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
    REAL(sendfile64);
    char path[PATH_MAX];
    if (!path_of_file(out, path)) return real(out, in, offset, length);
    errno = ENOSYS;
    return -1;
}
EXPORT int fallocate64(int fd, int how, off64_t offset, off64_t length) {
    REAL(fallocate64);
    char path[PATH_MAX];
    if (!path_of_file(fd, path)) return real(fd, how, offset, length);
    errno = EOPNOTSUPP;
    return -1;
}
EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(posix_fallocate64);
    char path[PATH_MAX];
    return path_of_file(fd, path) ? EOPNOTSUPP : real(fd, offset, length);
}
EXPORT int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

/* ---- syncing, cutting ---- */

EXPORT int fsync(int fd) {
    REAL(fsync);
    char path[PATH_MAX];
    if (path_of_file(fd, path) != 1) return real(fd);
    AROUND(SYNC, fd, path, "", 0, real(fd));
}
EXPORT int fdatasync(int fd) {
    REAL(fdatasync);
    char path[PATH_MAX];
    if (path_of_file(fd, path) != 1) return real(fd);
    AROUND(SYNC, fd, path, "", 0, real(fd));
}
EXPORT int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    char path[PATH_MAX];
    if (path_of_file(fd, path) != 1) return real(fd, length);
    AROUND(CUT, fd, path, "", length, real(fd, length));
}
EXPORT int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

/* ---- names ---- */

static int renamed(int folder, const char *from, int to_folder, const char *to, unsigned flags) {
    __typeof__(&renameat2) real = (__typeof__(&renameat2))dlsym(RTLD_NEXT, "renameat2");
    char path[PATH_MAX], second[PATH_MAX];
    int inside = path_of(folder, from, path) | path_of(to_folder, to, second);
    if (!inside) return real(folder, from, to_folder, to, flags);
    AROUND(RENAME, -1, path, second, 0, real(folder, from, to_folder, to, flags));
}
EXPORT int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to, 0); }
EXPORT int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return renamed(a, from, b, to, flags); }

static int linked(int folder, const char *from, int to_folder, const char *to, int flags) {
    __typeof__(&linkat) real = (__typeof__(&linkat))dlsym(RTLD_NEXT, "linkat");
    char path[PATH_MAX], second[PATH_MAX];
    int inside = path_of(folder, from, path) | path_of(to_folder, to, second);
    if (!inside) return real(folder, from, to_folder, to, flags);
    AROUND(LINK, -1, path, second, 0, real(folder, from, to_folder, to, flags));
}
EXPORT int link(const char *from, const char *to) { return linked(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int linkat(int a, const char *from, int b, const char *to, int flags) { return linked(a, from, b, to, flags); }

static int unlinked(int folder, const char *name, int flags) {
    __typeof__(&unlinkat) real = (__typeof__(&unlinkat))dlsym(RTLD_NEXT, "unlinkat");
    char path[PATH_MAX];
    if (!path_of(folder, name, path)) return real(folder, name, flags);
    int kind = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    AROUND(kind, -1, path, "", 0, real(folder, name, flags));
}
EXPORT int unlink(const char *name) { return unlinked(AT_FDCWD, name, 0); }
EXPORT int unlinkat(int folder, const char *name, int flags) { return unlinked(folder, name, flags); }
EXPORT int rmdir(const char *name) { return unlinked(AT_FDCWD, name, AT_REMOVEDIR); }

static int made(int folder, const char *name, mode_t bits) {
    __typeof__(&mkdirat) real = (__typeof__(&mkdirat))dlsym(RTLD_NEXT, "mkdirat");
    char path[PATH_MAX];
    if (!path_of(folder, name, path)) return real(folder, name, bits);
    AROUND(MKDIR, -1, path, "", 0, real(folder, name, bits));
}
EXPORT int mkdir(const char *name, mode_t bits) { return made(AT_FDCWD, name, bits); }
EXPORT int mkdirat(int folder, const char *name, mode_t bits) { return made(folder, name, bits); }

/* ---- reading ---- */

static ssize_t raw_read(int fd, void *bytes, size_t length, off64_t offset, int positioned) {
    REAL(pread64);
    static __typeof__(&read) plain;
    if (!plain) plain = (__typeof__(&read))dlsym(RTLD_NEXT, "read");
    return positioned ? real(fd, bytes, length, offset) : plain(fd, bytes, length);
}

/* Half of what was requested, but never zero bytes: that would be the end of a file. */
static ssize_t take(int fd, void *bytes, size_t length, off64_t offset, int positioned) {
    char path[PATH_MAX];
    if (!length || path_of_file(fd, path) != 1) return raw_read(fd, bytes, length, offset, positioned);
    pthread_mutex_lock(&turn);
    enum verdict verdict = judge(READ);
    ssize_t answer = -1;
    int failure = verdict == FAIL ? error_number : 0;
    if (!failure && (answer = raw_read(fd, bytes, verdict == HALVE ? (length + 1) / 2 : length, offset, positioned)) < 0) failure = errno;
    record(READ, failure != 0, fd, path, "", positioned ? (uint64_t)offset : 0, NULL, 0);
    pthread_mutex_unlock(&turn);
    if (failure) errno = failure;
    return answer;
}

EXPORT ssize_t read(int fd, void *bytes, size_t length) { return take(fd, bytes, length, 0, 0); }
EXPORT ssize_t pread(int fd, void *bytes, size_t length, off_t offset) { return take(fd, bytes, length, offset, 1); }
EXPORT ssize_t pread64(int fd, void *bytes, size_t length, off64_t offset) { return take(fd, bytes, length, offset, 1); }

/* ---- querying ---- */

/* Runs a reading call. */
#define LOOK(kind, fd, path, call)                                                                    \
    do {                                                                                              \
        pthread_mutex_lock(&turn);                                                                    \
        int answer = -1, failure = 0;                                                                 \
        if (judge(kind) == FAIL) failure = error_number;                                              \
        else if ((answer = (call)) < 0) failure = errno;                                              \
        record(kind, failure != 0, fd, path, "", 0, NULL, 0);                                         \
        pthread_mutex_unlock(&turn);                                                                  \
        if (failure) errno = failure;                                                                 \
        return answer;                                                                                \
    } while (0)

EXPORT int fstatat(int folder, const char *name, struct stat *found, int flags) {
    char path[PATH_MAX];
    if (!path_of(folder, name, path)) return raw_fstatat(folder, name, found, flags);
    LOOK(STAT, -1, path, raw_fstatat(folder, name, found, flags));
}
EXPORT int fstatat64(int folder, const char *name, struct stat64 *found, int flags) { return fstatat(folder, name, (struct stat *)found, flags); }
EXPORT int stat(const char *name, struct stat *found) { return fstatat(AT_FDCWD, name, found, 0); }
EXPORT int stat64(const char *name, struct stat64 *found) { return fstatat(AT_FDCWD, name, (struct stat *)found, 0); }
EXPORT int lstat(const char *name, struct stat *found) { return fstatat(AT_FDCWD, name, found, AT_SYMLINK_NOFOLLOW); }
EXPORT int lstat64(const char *name, struct stat64 *found) { return fstatat(AT_FDCWD, name, (struct stat *)found, AT_SYMLINK_NOFOLLOW); }
EXPORT int fstat(int fd, struct stat *found) {
    REAL(fstat);
    char path[PATH_MAX];
    if (path_of_file(fd, path) != 1) return real(fd, found);
    LOOK(STAT, fd, path, real(fd, found));
}
EXPORT int fstat64(int fd, struct stat64 *found) { return fstat(fd, (struct stat *)found); }
/* Under a name of its own: Rust asks `statx` about nothing to see whether it is there, and the header's promise that this does not happen
 * would take the check for it away. */
EXPORT int asked(int folder, const char *name, int flags, unsigned mask, void *found) __asm__("statx");
EXPORT int asked(int folder, const char *name, int flags, unsigned mask, void *found) {
    __typeof__(&asked) real = (__typeof__(&asked))dlsym(RTLD_NEXT, "statx");
    char path[PATH_MAX];
    int is_file = name && !*name && folder >= 0;
    if (!(is_file ? path_of_file(folder, path) == 1 : path_of(folder, name, path))) return real(folder, name, flags, mask, found);
    LOOK(STAT, is_file ? folder : -1, path, real(folder, name, flags, mask, found));
}
EXPORT int access(const char *name, int how) {
    REAL(access);
    char path[PATH_MAX];
    if (!path_of(AT_FDCWD, name, path)) return real(name, how);
    LOOK(STAT, -1, path, real(name, how));
}

/* ---- listing: to open a folder and to read from it may each fail ---- */

static int may_list(int fd, const char *path) {
    pthread_mutex_lock(&turn);
    int fails = judge(LIST) == FAIL;
    record(LIST, fails, fd, path, "", 0, NULL, 0);
    pthread_mutex_unlock(&turn);
    return !fails;
}

EXPORT DIR *opendir(const char *name) {
    REAL(opendir);
    char path[PATH_MAX];
    if (!path_of(AT_FDCWD, name, path) || may_list(-1, path)) return real(name);
    errno = error_number;
    return NULL;
}
EXPORT struct dirent64 *readdir64(DIR *folder) {
    REAL(readdir64);
    char path[PATH_MAX];
    if (path_of_file(dirfd(folder), path) != 1 || may_list(dirfd(folder), path)) return real(folder);
    errno = error_number;
    return NULL;
}

/* ---- locks: counted, never traced with data, and waited for without blocking other calls ---- */

static int may_lock(int fd, const char *path) {
    pthread_mutex_lock(&turn);
    int fails = judge(LOCK) == FAIL;
    record(LOCK, fails, fd, path, "", 0, NULL, 0);
    int dies = mode == AFTER && count == at;
    pthread_mutex_unlock(&turn);
    return fails ? -1 : dies;
}

EXPORT int flock(int fd, int how) {
    REAL(flock);
    char path[PATH_MAX];
    if (path_of_file(fd, path) != 1) return real(fd, how);
    if (how & LOCK_UN) LOOK(UNLOCK, fd, path, real(fd, how));
    int verdict = may_lock(fd, path);
    if (verdict < 0) { errno = error_number; return -1; }
    int answer = real(fd, how);
    if (verdict) die();
    return answer;
}

static int controlled(int fd, int what, void *argument) {
    __typeof__(&fcntl) real = (__typeof__(&fcntl))dlsym(RTLD_NEXT, "fcntl64");
    char path[PATH_MAX];
    int locks = what == F_SETLK || what == F_SETLKW || what == F_OFD_SETLK || what == F_OFD_SETLKW;
    if (!locks || ((struct flock *)argument)->l_type == F_UNLCK || path_of_file(fd, path) != 1) return real(fd, what, argument);
    int verdict = may_lock(fd, path);
    if (verdict < 0) { errno = error_number; return -1; }
    int answer = real(fd, what, argument);
    if (verdict) die();
    return answer;
}
EXPORT int fcntl(int fd, int what, ...) {
    va_list rest; va_start(rest, what); void *argument = va_arg(rest, void *); va_end(rest);
    return controlled(fd, what, argument);
}
EXPORT int fcntl64(int fd, int what, ...) {
    va_list rest; va_start(rest, what); void *argument = va_arg(rest, void *); va_end(rest);
    return controlled(fd, what, argument);
}
