/* The wall clock of one process, shifted by SKEW_S seconds and drifting by SKEW_PPM from the process's start on; clocks
 * that only count on are left alone, so that sleeps and timeouts keep working.
 * cc -O2 -shared -fPIC -o skew.so skew.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real_gettime)(clockid_t, struct timespec *);
static long long shift_ns, began_ns;
static double drift;

static long long true_ns(void) {
    struct timespec now;
    real_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

__attribute__((constructor)) static void begin(void) {
    if (real_gettime) return;
    real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *shift = getenv("SKEW_S"), *ppm = getenv("SKEW_PPM");
    shift_ns = shift ? (long long)(atof(shift) * 1e9) : 0;
    drift = ppm ? atof(ppm) * 1e-6 : 0;
    began_ns = true_ns();
}

static long long skewed_ns(void) {
    begin();
    long long now = true_ns();
    return now + shift_ns + (long long)((now - began_ns) * drift);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    begin();
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) return real_gettime(clock, out);
    long long now = skewed_ns();
    out->tv_sec = now / 1000000000LL;
    out->tv_nsec = now % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *out, void *zone) {
    (void)zone;
    long long now = skewed_ns();
    out->tv_sec = now / 1000000000LL;
    out->tv_usec = now % 1000000000LL / 1000;
    return 0;
}

time_t time(time_t *out) {
    time_t now = skewed_ns() / 1000000000LL;
    if (out) *out = now;
    return now;
}
