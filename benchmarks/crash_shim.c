/* Preloaded (LD_PRELOAD): counts the calls that change files below a folder, and at one of them kills or fails.
 *
 * A process loads it disarmed, forks, and the child calls shim_arm. Calls are counted over all threads of the child.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { COUNT, KILL, TEAR, FAIL, FULL }; /* TEAR: write half, then kill. FULL: this call and all later ones fail. */
static char root[PATH_MAX];
static int mode;
static long target;
static atomic_long calls;
static atomic_int is_armed;

void shim_arm(const char *folder, int how, long number) {
    snprintf(root, sizeof root, "%s/", folder);
    mode = how;
    target = number;
    atomic_store(&calls, 0);
    atomic_store(&is_armed, 1);
}

long shim_disarm(void) {
    atomic_store(&is_armed, 0);
    return atomic_load(&calls);
}

static int is_below(const char *path) { return strncmp(path, root, strlen(root)) == 0; }

static int handle_is_below(int handle) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, sizeof path - 2);
    if (length < 0)
        return 0;
    strcpy(path + length, "/"); /* the folder itself counts, too */
    return is_below(path);
}

static int name_is_below(int folder, const char *path) {
    if (path[0] == '/')
        return is_below(path);
    return folder == AT_FDCWD ? 0 : handle_is_below(folder);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* 0: go on; 1: write half and die; -1: fail, with errno set. */
static int reached(int concerns, int error) {
    if (!concerns)
        return 0;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (mode == COUNT || number < target || (number > target && mode != FULL))
        return 0;
    if (mode == TEAR)
        return 1;
    if (mode == KILL)
        die();
    errno = error;
    return -1;
}

#define ARMED atomic_load(&is_armed)
#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define GUARD(concerns, error) \
    if (ARMED) { \
        int saved = errno, outcome = reached(concerns, error); \
        if (outcome < 0) \
            return -1; \
        if (outcome > 0) \
            die(); \
        errno = saved; \
    }
#define GUARD_WRITE(half) \
    if (ARMED) { \
        int saved = errno, outcome = reached(handle_is_below(handle), ENOSPC); \
        if (outcome < 0) \
            return -1; \
        if (outcome > 0) { \
            half; \
            die(); \
        } \
        errno = saved; \
    }

ssize_t write(int handle, const void *data, size_t size) {
    NEXT(write);
    GUARD_WRITE((void)!next(handle, data, size / 2))
    return next(handle, data, size);
}

ssize_t writev(int handle, const struct iovec *parts, int n) {
    NEXT(writev);
    GUARD_WRITE((void)!next(handle, parts, n / 2))
    return next(handle, parts, n);
}

ssize_t pwrite(int handle, const void *data, size_t size, off_t at) {
    NEXT(pwrite);
    GUARD_WRITE((void)!next(handle, data, size / 2, at))
    return next(handle, data, size, at);
}

ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) {
    NEXT(pwrite64);
    GUARD_WRITE((void)!next(handle, data, size / 2, at))
    return next(handle, data, size, at);
}

int fsync(int handle) {
    NEXT(fsync);
    GUARD(handle_is_below(handle), EIO)
    return next(handle);
}

int fdatasync(int handle) {
    NEXT(fdatasync);
    GUARD(handle_is_below(handle), EIO)
    return next(handle);
}

int ftruncate(int handle, off_t size) {
    NEXT(ftruncate);
    GUARD(handle_is_below(handle), ENOSPC)
    return next(handle, size);
}

int ftruncate64(int handle, off64_t size) {
    NEXT(ftruncate64);
    GUARD(handle_is_below(handle), ENOSPC)
    return next(handle, size);
}

int rename(const char *from, const char *to) {
    NEXT(rename);
    GUARD(is_below(to), ENOSPC)
    return next(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    NEXT(renameat);
    GUARD(name_is_below(to_folder, to), ENOSPC)
    return next(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    NEXT(renameat2);
    GUARD(name_is_below(to_folder, to), ENOSPC)
    return next(from_folder, from, to_folder, to, flags);
}

int link(const char *from, const char *to) {
    NEXT(link);
    GUARD(is_below(to), ENOSPC)
    return next(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    NEXT(linkat);
    GUARD(name_is_below(to_folder, to), ENOSPC)
    return next(from_folder, from, to_folder, to, flags);
}

int mkdir(const char *path, mode_t permissions) {
    NEXT(mkdir);
    GUARD(is_below(path), ENOSPC)
    return next(path, permissions);
}

int unlink(const char *path) {
    NEXT(unlink);
    GUARD(is_below(path), EIO)
    return next(path);
}

int unlinkat(int folder, const char *path, int flags) {
    NEXT(unlinkat);
    GUARD(name_is_below(folder, path), EIO)
    return next(folder, path, flags);
}

int rmdir(const char *path) {
    NEXT(rmdir);
    GUARD(is_below(path), EIO)
    return next(path);
}
