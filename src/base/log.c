#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"

static enum log_level minimum_level = LOG_LEVEL_INFO;
static bool json_format;

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_setup(enum log_level minimum, bool json)
{
        minimum_level = minimum;
        json_format = json;
}

bool log_level_parse(const char *s, enum log_level *ret)
{
        for (int i = 0; i < 4; i++)
                if (strcmp(s, level_names[i]) == 0) {
                        *ret = (enum log_level)i;
                        return true;
                }
        return false;
}

const char *log_level_name(enum log_level level)
{
        return level_names[level];
}

static void add_json_string(struct buf *b, const char *s)
{
        buf_addc(b, '"');
        for (; *s; s++) {
                unsigned char c = (unsigned char)*s;

                if (c == '"' || c == '\\')
                        buf_addf(b, "\\%c", c);
                else if (c < 0x20)
                        buf_addf(b, "\\u%04x", c);
                else
                        buf_addc(b, *s);
        }
        buf_addc(b, '"');
}

void log_message(enum log_level level, const char *format, ...)
{
        CLEANUP_BUF struct buf text = {}, line = {};
        char when[RFC3339_MAX];
        va_list ap;

        if (level < minimum_level)
                return;
        va_start(ap, format);
        buf_vaddf(&text, format, ap);
        va_end(ap);
        rfc3339_format(clock_realtime_ns(), when);
        if (json_format) {
                buf_addf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"message\":", when, level_names[level]);
                add_json_string(&line, buf_str(&text));
                buf_adds(&line, "}\n");
        } else {
                for (char *p = text.data; p && *p; p++)
                        if (*p == '\n' || *p == '\r')
                                *p = ' ';
                buf_addf(&line, "%s %-5s %s\n", when, level_names[level], buf_str(&text));
        }
        /* One write, so that lines of several threads and processes do not mix. */
        if (write(STDERR_FILENO, line.data, line.len) < 0)
                return;
}
