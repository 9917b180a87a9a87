#include "negotiate.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"

struct preference {
        double gzip, identity, any; /* quality, -1 = not named */
        enum encoding first;        /* of the highest quality, header order breaking ties */
};

static void read_item(char *item, struct preference *p, double *best)
{
        char *parameter = strchr(item, ';'), *name;
        double q = 1;
        enum encoding means;

        if (parameter) {
                *parameter++ = 0;
                parameter = str_trim(parameter);
                if (strncasecmp(parameter, "q=", 2) == 0)
                        q = strtod(parameter + 2, NULL);
        }
        name = str_trim(item);
        if (strcasecmp(name, "gzip") == 0)
                p->gzip = q, means = ENCODING_GZIP;
        else if (strcasecmp(name, "identity") == 0)
                p->identity = q, means = ENCODING_IDENTITY;
        else if (streq(name, "*"))
                p->any = q, means = ENCODING_IDENTITY;
        else
                return;
        if (q > *best) {
                *best = q;
                p->first = means == ENCODING_IDENTITY && streq(name, "*") ? ENCODING_NONE : means;
        }
}

static struct preference read_preference(const char *accept)
{
        struct preference p = { -1, -1, -1, ENCODING_NONE };
        CLEANUP_FREE char *copy = xstrdup(accept);
        char *save = NULL;
        double best = 0;

        for (char *item = strtok_r(copy, ",", &save); item; item = strtok_r(NULL, ",", &save))
                read_item(item, &p, &best);
        return p;
}

static bool identity_allowed(const struct preference *p)
{
        return p->identity > 0 || (p->identity < 0 && p->any != 0);
}

bool negotiate_identity(const char *accept)
{
        struct preference p;

        if (!accept)
                return true;
        p = read_preference(accept);
        return identity_allowed(&p);
}

enum encoding negotiate_encoding(const char *accept)
{
        struct preference p;

        if (!accept)
                return ENCODING_IDENTITY;
        p = read_preference(accept);
        if (p.first != ENCODING_NONE)
                return p.first;
        if (identity_allowed(&p))
                return ENCODING_IDENTITY;
        return p.any > 0 && p.gzip != 0 ? ENCODING_GZIP : ENCODING_NONE;
}

static bool read_number(const char **p, uint64_t *ret)
{
        char *end;

        if (!isdigit((unsigned char)**p))
                return false;
        *ret = strtoull(*p, &end, 10);
        *p = end;
        return true;
}

enum range negotiate_range(const char *header, uint64_t size, uint64_t *ret_start, uint64_t *ret_length)
{
        uint64_t start, end;
        const char *p = header;

        if (!p || strncmp(p, "bytes=", 6) != 0 || strchr(p, ','))
                return RANGE_ALL;
        p += 6;
        if (*p == '-') {
                p++;
                if (!read_number(&p, &end) || *p)
                        return RANGE_ALL;
                if (end == 0 || size == 0)
                        return RANGE_UNSATISFIABLE;
                *ret_length = end < size ? end : size;
                *ret_start = size - *ret_length;
                return RANGE_PART;
        }
        if (!read_number(&p, &start) || *p++ != '-')
                return RANGE_ALL;
        if (*p == 0)
                end = size ? size - 1 : 0;
        else if (!read_number(&p, &end) || *p || end < start)
                return RANGE_ALL;
        if (start >= size)
                return RANGE_UNSATISFIABLE;
        if (end >= size)
                end = size - 1;
        *ret_start = start;
        *ret_length = end - start + 1;
        return RANGE_PART;
}

char *negotiate_disposition(const char *name)
{
        struct buf b = {};
        bool token = *name, ascii = true;

        for (const char *p = name; *p; p++) {
                unsigned char c = (unsigned char)*p;

                ascii = ascii && c < 0x80 && c >= 0x20;
                token = token && c > 0x20 && c < 0x7f && !strchr("()<>@,;:\\\"/[]?=", c);
        }
        buf_adds(&b, "inline; filename");
        if (!ascii) {
                buf_adds(&b, "*=utf-8''");
                for (const unsigned char *p = (const unsigned char *)name; *p; p++) {
                        if (*p > 0x20 && *p < 0x7f && !strchr("*'%()<>@,;:\\\"/[]?=", *p))
                                buf_addc(&b, (char)*p);
                        else
                                buf_addf(&b, "%%%02X", *p);
                }
        } else if (token)
                buf_addf(&b, "=%s", name);
        else {
                buf_adds(&b, "=\"");
                for (; *name; name++) {
                        if (*name == '"' || *name == '\\')
                                buf_addc(&b, '\\');
                        buf_addc(&b, *name);
                }
                buf_addc(&b, '"');
        }
        return buf_steal(&b);
}

const char *negotiate_type(const char *name, const void *head, unsigned long len)
{
        static const char *const types[][2] = {
                { ".txt", "text/plain; charset=utf-8" }, { ".html", "text/html; charset=utf-8" },
                { ".htm", "text/html; charset=utf-8" }, { ".css", "text/css; charset=utf-8" },
                { ".js", "text/javascript; charset=utf-8" }, { ".mjs", "text/javascript; charset=utf-8" },
                { ".json", "application/json" }, { ".xml", "text/xml; charset=utf-8" }, { ".pdf", "application/pdf" },
                { ".png", "image/png" }, { ".jpg", "image/jpeg" }, { ".jpeg", "image/jpeg" }, { ".gif", "image/gif" },
                { ".svg", "image/svg+xml" }, { ".webp", "image/webp" }, { ".wasm", "application/wasm" },
                { ".csv", "text/csv; charset=utf-8" }, { ".md", "text/markdown; charset=utf-8" },
                { ".gz", "application/gzip" }, { ".zip", "application/zip" }, { ".tar", "application/x-tar" },
                { ".mp4", "video/mp4" }, { ".mp3", "audio/mpeg" },
        };
        const char *dot = strrchr(name, '.');
        const unsigned char *p = head;

        for (size_t i = 0; dot && i < sizeof(types) / sizeof(types[0]); i++)
                if (strcasecmp(dot, types[i][0]) == 0)
                        return types[i][1];
        for (unsigned long i = 0; i < len; i++)
                if (p[i] < 0x20 && !strchr("\t\n\f\r\x1b", p[i]))
                        return "application/octet-stream";
        return "text/plain; charset=utf-8";
}
