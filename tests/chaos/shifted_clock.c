/* Loaded before the C library: the time of day is shifted by the seconds in the file that CHAOS_CLOCK names (eight
   bytes, as the machine orders them). Clocks that cannot be set, as CLOCK_MONOTONIC, stay right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void map_shift(void)
{
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *memory = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED)
        shift = memory;
    close(file);
}

static int64_t shifted_by(void) { return shift ? *shift : 0; }

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += shifted_by();
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact))
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

/* The kernel waits by its own clock. */
int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    static int (*of_library)(sem_t *, const struct timespec *);
    if (!of_library)
        of_library = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec real = {until->tv_sec - shifted_by(), until->tv_nsec};
    return of_library(semaphore, &real);
}
