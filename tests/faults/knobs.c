/* Loaded into a server before the C library: turns what the machine does into what a test wants.
 *
 * The file that FAULT_KNOBS names holds three numbers of 64 bits: what is added to the wall clock
 * (nanoseconds), how much longer each fdatasync takes (microseconds), and the errno with which the
 * next one fails, which is then taken back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct knobs {
    int64_t wall_ns;
    int64_t sync_us;
    int64_t sync_errno;
};

static struct knobs *knobs;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_sync)(int);

__attribute__((constructor)) static void begin(void)
{
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_sync = dlsym(RTLD_NEXT, "fdatasync");
    const char *path = getenv("FAULT_KNOBS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof *knobs, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED)
        knobs = page;
    close(fd);
}

#define TURNED(knob) (knobs ? __atomic_load_n(&knobs->knob, __ATOMIC_RELAXED) : 0)

int clock_gettime(clockid_t id, struct timespec *at)
{
    int failed = real_gettime(id, at);
    int64_t added = TURNED(wall_ns);
    if (!failed && id == CLOCK_REALTIME && added) {
        int64_t ns = at->tv_sec * 1000000000LL + at->tv_nsec + added;
        at->tv_sec = ns / 1000000000LL;
        at->tv_nsec = ns % 1000000000LL;
    }
    return failed;
}

int fdatasync(int fd)
{
    int64_t us = TURNED(sync_us);
    struct timespec length = {us / 1000000, us % 1000000 * 1000};
    if (us)
        nanosleep(&length, NULL);
    if (TURNED(sync_errno)) {
        errno = (int)__atomic_exchange_n(&knobs->sync_errno, 0, __ATOMIC_RELAXED);
        return -1;
    }
    return real_sync(fd);
}
