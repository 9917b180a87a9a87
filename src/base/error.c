#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int error_kind_to_errno(enum error_kind kind)
{
        switch (kind) {
        case ERROR_INVALID:
                return -EINVAL;
        case ERROR_UNAUTHORISED:
        case ERROR_FORBIDDEN:
                return -EACCES;
        case ERROR_NOT_FOUND:
                return -ENOENT;
        case ERROR_CONFLICT:
                return -EBUSY;
        case ERROR_LIMIT:
                return -EDQUOT;
        case ERROR_UNAVAILABLE:
                return -EAGAIN;
        case ERROR_CANCELLED:
                return -ECANCELED;
        case ERROR_INTERNAL:
                break;
        }
        return -EIO;
}

static enum error_kind kind_of_errno(int errnum)
{
        switch (errnum) {
        case ENOENT:
                return ERROR_NOT_FOUND;
        case ENOSPC:
        case EDQUOT:
                return ERROR_UNAVAILABLE;
        case ECANCELED:
                return ERROR_CANCELLED;
        default:
                return ERROR_INTERNAL;
        }
}

int (error_set)(struct error *err, enum error_kind kind, const char *format, ...)
{
        if (err) {
                va_list ap;

                err->kind = kind;
                err->number = 0;
                va_start(ap, format);
                vsnprintf(err->message, sizeof(err->message), format, ap);
                va_end(ap);
        }
        return error_kind_to_errno(kind);
}

int (error_errno)(struct error *err, int errnum, const char *format, ...)
{
        errnum = abs(errnum);
        if (err) {
                char text[128];
                va_list ap;
                size_t n;

                err->kind = kind_of_errno(errnum);
                err->number = errnum;
                va_start(ap, format);
                vsnprintf(err->message, sizeof(err->message), format, ap);
                va_end(ap);
                n = strlen(err->message);
                snprintf(err->message + n, sizeof(err->message) - n, ": %s",
                         strerror_r(errnum, text, sizeof(text)));
        }
        return -errnum;
}

int (error_wrap)(struct error *err, int ret, const char *format, ...)
{
        char context[ERROR_MESSAGE_MAX], message[ERROR_MESSAGE_MAX];
        va_list ap;
        size_t n;

        if (!err)
                return ret;
        va_start(ap, format);
        vsnprintf(context, sizeof(context), format, ap);
        va_end(ap);
        memcpy(message, err->message, sizeof(message));
        n = strlen(context);
        memcpy(err->message, context, n + 1);
        /* Overlong chains lose their innermost end. */
        strncat(err->message, ": ", sizeof(err->message) - n - 1);
        strncat(err->message, message, sizeof(err->message) - strlen(err->message) - 1);
        return ret;
}
