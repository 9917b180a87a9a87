/* The frequency of this host's time-stamp counter.
 */
#pragma once

#include <stdint.h>

/* kHz, measured once per process against CLOCK_MONOTONIC_RAW over 50 ms (to about 10 ppm); 0 where there is none
 * (not x86_64). Thread-safe. */
uint64_t tsc_khz(void);
