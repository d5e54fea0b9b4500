/* Loaded before the C library: shifts the time of day by CLOCK_SHIFT seconds.

The monotonic clock and the times of files stay as they are. A wait until a time of day
is shifted back. No monotonic clock reads as many seconds as a time of day does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#define TIME_OF_DAY 1000000000L
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* Of two that bear this name, the first is of another time. */
#define NEXT_COND(name) ((__typeof__(&name))dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2"))

static long shift(void) {
    static long seconds;
    static int known;
    if (!known) {
        const char *text = getenv("CLOCK_SHIFT");
        seconds = text ? atol(text) : 0;
        known = 1;
    }
    return seconds;
}

static struct timespec real(const struct timespec *until) {
    struct timespec time = *until;
    if (time.tv_sec > TIME_OF_DAY) time.tv_sec -= shift();
    return time;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static __typeof__(&clock_gettime) next;
    if (!next) next = NEXT(clock_gettime);
    int result = next(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static __typeof__(&gettimeofday) next;
    if (!next) next = NEXT(gettimeofday);
    int result = next(now, zone);
    if (!result) now->tv_sec += shift();
    return result;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

int clock_nanosleep(clockid_t id, int flags, const struct timespec *time,
                    struct timespec *left) {
    if (!(flags & TIMER_ABSTIME)) return NEXT(clock_nanosleep)(id, flags, time, left);
    struct timespec until = real(time);
    return NEXT(clock_nanosleep)(id, flags, &until, left);
}

#define UNTIL(find, name, of, ...)                                                     \
    int name(__VA_ARGS__, const struct timespec *time) {                               \
        struct timespec until = real(time);                                            \
        return find(name) of;                                                          \
    }

UNTIL(NEXT, sem_timedwait, (sem, &until), sem_t *sem)
UNTIL(NEXT, sem_clockwait, (sem, id, &until), sem_t *sem, clockid_t id)
UNTIL(NEXT_COND, pthread_cond_timedwait, (cond, mutex, &until), pthread_cond_t *cond,
      pthread_mutex_t *mutex)
UNTIL(NEXT, pthread_cond_clockwait, (cond, mutex, id, &until), pthread_cond_t *cond,
      pthread_mutex_t *mutex, clockid_t id)
UNTIL(NEXT, pthread_mutex_timedlock, (mutex, &until), pthread_mutex_t *mutex)
UNTIL(NEXT, pthread_mutex_clocklock, (mutex, id, &until), pthread_mutex_t *mutex,
      clockid_t id)
