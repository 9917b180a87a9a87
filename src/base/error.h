/* The error that travels up to a user.
 *
 * Every function that can fail for a reason worth telling takes `struct error *err` as its last
 * argument and returns 0 or a negative errno-like value. The message starts at the place of failure
 * ("sha256 mismatch") and is wrapped on the way up ("pull debian:12: layer 3/7: sha256 mismatch").
 * Only the API layer turns a kind into an HTTP status. `err` may be NULL where nobody listens.
 */
#pragma once

#include <stdarg.h>

enum error_kind {
        ERROR_INTERNAL = 0,  /* ours: a bug, an I/O failure */
        ERROR_INVALID,       /* what was asked makes no sense */
        ERROR_UNAUTHORISED,  /* no or unknown credentials */
        ERROR_FORBIDDEN,     /* known, but not allowed */
        ERROR_NOT_FOUND,
        ERROR_CONFLICT,      /* not in this state */
        ERROR_LIMIT,         /* a named limit is reached */
        ERROR_UNAVAILABLE,   /* something needed is missing or full; may work later */
        ERROR_CANCELLED,     /* the caller asked to stop */
};

#define ERROR_MESSAGE_MAX 4096

struct error {
        enum error_kind kind;
        int number;                      /* the errno behind it, or 0 */
        char message[ERROR_MESSAGE_MAX]; /* valid UTF-8, no secret, no trailing newline */
};

/* Fills `err` and returns the negative errno of `kind` (ERROR_INVALID -> -EINVAL, NOT_FOUND -> -ENOENT,
 * FORBIDDEN and UNAUTHORISED -> -EACCES, CONFLICT -> -EBUSY, LIMIT -> -EDQUOT, UNAVAILABLE -> -EAGAIN,
 * CANCELLED -> -ECANCELED, INTERNAL -> -EIO). Overlong messages are cut. */
int error_set(struct error *err, enum error_kind kind, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: the message is "<format>: <strerror(errnum)>", the kind follows
 * errnum (ENOENT -> NOT_FOUND, ENOSPC and EDQUOT -> UNAVAILABLE, ECANCELED -> CANCELLED, else
 * INTERNAL). `errnum` is positive or negative. Returns -|errnum|. */
int error_errno(struct error *err, int errnum, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Puts "<format>: " in front of the message; kind and number stay. Returns `ret` so that
 * `return error_wrap(err, r, "pull %s", ref)` reads well. */
int error_wrap(struct error *err, int ret, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The negative errno that stands for a kind. */
int error_kind_to_errno(enum error_kind kind);

#ifdef __clang_analyzer__
/* Lets the analyser see what the comments say: error_set and error_errno are negative, error_wrap is `ret`. */
#define error_set(...) ((void)(error_set)(__VA_ARGS__), -5)
#define error_errno(...) ((void)(error_errno)(__VA_ARGS__), -5)
#define error_wrap(err, ret, ...)                              \
        ({                                                     \
                int wrapped_ = (ret);                          \
                (void)(error_wrap)(err, wrapped_, __VA_ARGS__); \
                wrapped_;                                      \
        })
#endif
