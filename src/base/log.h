/* The program's own log, on stderr: text or JSON lines. Libraries do not log; programs (serve, shim,
 * agent) and the code that answers for a request do. No secret may reach it. Thread-safe.
 */
#pragma once

#include <stdbool.h>

enum log_level {
        LOG_LEVEL_DEBUG = 0,
        LOG_LEVEL_INFO,
        LOG_LEVEL_WARN,
        LOG_LEVEL_ERROR,
};

/* Sets the lowest level printed (default info) and the format (default text). Call before threads. */
void log_setup(enum log_level minimum, bool json);

/* "debug", "info", "warn", "error" -> level; false on anything else. */
bool log_level_parse(const char *s, enum log_level *ret);
const char *log_level_name(enum log_level level);

void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_message(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_message(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...) log_message(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_message(LOG_LEVEL_ERROR, __VA_ARGS__)
