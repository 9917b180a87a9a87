#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t read_clock(clockid_t id)
{
        struct timespec ts;

        clock_gettime(id, &ts);
        return (int64_t)ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
}

void clock_cond_init(pthread_cond_t *c)
{
        pthread_condattr_t attr;

        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(c, &attr);
        pthread_condattr_destroy(&attr);
}

int64_t clock_realtime_ns(void)
{
        return read_clock(CLOCK_REALTIME);
}

int64_t clock_monotonic_ns(void)
{
        return read_clock(CLOCK_MONOTONIC);
}

void rfc3339_format(int64_t ns, char *out)
{
        int64_t sec = ns / NSEC_PER_SEC, frac = ns % NSEC_PER_SEC;
        struct tm tm;
        time_t t;

        if (frac < 0) {
                sec--;
                frac += NSEC_PER_SEC;
        }
        t = (time_t)sec;
        gmtime_r(&t, &tm);
        snprintf(out, RFC3339_MAX, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", (tm.tm_year + 1900) % 10000,
                 tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(frac / 1000));
}

/* Reads exactly `n` digits at *s and moves past them. */
static bool digits(const char **s, int n, int *ret)
{
        int v = 0;

        for (int i = 0; i < n; i++) {
                if ((*s)[i] < '0' || (*s)[i] > '9')
                        return false;
                v = v * 10 + (*s)[i] - '0';
        }
        *s += n;
        *ret = v;
        return true;
}

static bool literal(const char **s, const char *allowed)
{
        if (!**s || !strchr(allowed, **s))
                return false;
        (*s)++;
        return true;
}

static bool parse_zone(const char **s, int *ret_minutes)
{
        int sign, h, m;

        if (literal(s, "Zz")) {
                *ret_minutes = 0;
                return true;
        }
        sign = **s == '-' ? -1 : 1;
        if (!literal(s, "+-") || !digits(s, 2, &h) || !literal(s, ":") || !digits(s, 2, &m) || h > 23 || m > 59)
                return false;
        *ret_minutes = sign * (h * 60 + m);
        return true;
}

bool rfc3339_parse(const char *s, int64_t *ret_ns)
{
        int64_t frac = 0, scale = NSEC_PER_SEC / 10;
        struct tm tm = {};
        int zone;

        if (!digits(&s, 4, &tm.tm_year) || !literal(&s, "-") || !digits(&s, 2, &tm.tm_mon) ||
            !literal(&s, "-") || !digits(&s, 2, &tm.tm_mday) || !literal(&s, "Tt ") ||
            !digits(&s, 2, &tm.tm_hour) || !literal(&s, ":") || !digits(&s, 2, &tm.tm_min) ||
            !literal(&s, ":") || !digits(&s, 2, &tm.tm_sec))
                return false;
        if (tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 || tm.tm_hour > 23 ||
            tm.tm_min > 59 || tm.tm_sec > 60 || tm.tm_year > 2200)
                return false;
        if (literal(&s, ".")) {
                if (*s < '0' || *s > '9')
                        return false;
                for (; *s >= '0' && *s <= '9'; s++, scale /= 10) {
                        if (!scale)
                                return false;
                        frac += (*s - '0') * scale;
                }
        }
        if (!parse_zone(&s, &zone) || *s)
                return false;
        tm.tm_year -= 1900;
        tm.tm_mon -= 1;
        *ret_ns = ((int64_t)timegm(&tm) - zone * 60) * NSEC_PER_SEC + frac;
        return true;
}
