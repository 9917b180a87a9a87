/* CPUID leaf 15h is absent on AMD and under most hypervisors, /proc/cpuinfo shows the current and not the counter's
 * frequency: so it is measured. A sample is a counter value with the clock read before and after; the tightest of several
 * counts, which makes a preemption harmless. */
#include "vm/tsc.h"

#include <pthread.h>
#include <time.h>

static uint64_t measured;

#ifdef __x86_64__
#include <x86intrin.h>

#define SAMPLES 64
#define SPAN_NS 50000000LL

struct sample {
        uint64_t ticks;
        int64_t ns;
};

static int64_t raw_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC_RAW, &t);
        return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct sample take(void)
{
        struct sample best = {};
        int64_t narrowest = INT64_MAX;

        for (int i = 0; i < SAMPLES; i++) {
                int64_t before = raw_ns();
                uint64_t ticks = __rdtsc();
                int64_t after = raw_ns();

                if (after - before < narrowest) {
                        narrowest = after - before;
                        best = (struct sample){ticks, before + (after - before) / 2};
                }
        }
        return best;
}

static void measure(void)
{
        struct sample a = take(), b;
        struct timespec span = {.tv_nsec = SPAN_NS};

        clock_nanosleep(CLOCK_MONOTONIC, 0, &span, NULL);
        b = take();
        if (b.ns > a.ns)
                measured = (uint64_t)((double)(b.ticks - a.ticks) * 1e6 / (double)(b.ns - a.ns) + 0.5);
}
#else
static void measure(void)
{
}
#endif

uint64_t tsc_khz(void)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;

        pthread_once(&once, measure);
        return measured;
}
