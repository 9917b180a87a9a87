/* Header lists, percent-encoding and queries. Values only: no I/O, no state. Header lists are short (a
 * request has a dozen), so every search is linear and order of arrival is kept.
 */
#include "http/message.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"

void http_headers_add(struct http_headers *h, const char *name, const char *value)
{
        char *copy = xstrdup(value), *trimmed = str_trim(copy);

        if (trimmed != copy)
                memmove(copy, trimmed, strlen(trimmed) + 1);
        h->items = xreallocarray(h->items, h->count + 1, sizeof(*h->items));
        h->items[h->count++] = (struct http_header){.name = xstrdup(name), .value = copy};
}

void http_headers_addf(struct http_headers *h, const char *name, const char *format, ...)
{
        CLEANUP_BUF struct buf b = {};
        va_list ap;

        va_start(ap, format);
        buf_vaddf(&b, format, ap);
        va_end(ap);
        http_headers_add(h, name, buf_str(&b));
}

void http_headers_remove(struct http_headers *h, const char *name)
{
        size_t kept = 0;

        for (size_t i = 0; i < h->count; i++) {
                if (strcasecmp(h->items[i].name, name) != 0) {
                        h->items[kept++] = h->items[i];
                        continue;
                }
                free(h->items[i].name);
                free(h->items[i].value);
        }
        h->count = kept;
}

void http_headers_set(struct http_headers *h, const char *name, const char *value)
{
        CLEANUP_FREE char *copy = xstrdup(value); /* `value` may belong to what is removed */

        http_headers_remove(h, name);
        http_headers_add(h, name, copy);
}

const char *http_headers_get(const struct http_headers *h, const char *name)
{
        for (size_t i = 0; i < h->count; i++)
                if (strcasecmp(h->items[i].name, name) == 0)
                        return h->items[i].value;
        return NULL;
}

static bool list_has_token(const char *list, const char *token)
{
        size_t n = strlen(token);

        while (*list) {
                size_t len;

                list += strspn(list, " \t,");
                len = strcspn(list, " \t,;");
                if (len == n && strncasecmp(list, token, n) == 0)
                        return true;
                list += strcspn(list, ",");
        }
        return false;
}

bool http_headers_has_token(const struct http_headers *h, const char *name, const char *token)
{
        for (size_t i = 0; i < h->count; i++)
                if (strcasecmp(h->items[i].name, name) == 0 && list_has_token(h->items[i].value, token))
                        return true;
        return false;
}

void http_headers_copy(struct http_headers *to, const struct http_headers *from)
{
        for (size_t i = 0; i < from->count; i++)
                http_headers_add(to, from->items[i].name, from->items[i].value);
}

void http_headers_free(struct http_headers *h)
{
        for (size_t i = 0; i < h->count; i++) {
                free(h->items[i].name);
                free(h->items[i].value);
        }
        free(h->items);
        *h = (struct http_headers){};
}

void http_request_free(struct http_request *r)
{
        free(r->method);
        free(r->target);
        free(r->path);
        free(r->query);
        http_headers_free(&r->headers);
        *r = (struct http_request){};
}

void http_response_free(struct http_response *r)
{
        free(r->reason);
        http_headers_free(&r->headers);
        *r = (struct http_response){};
}

char *url_decode(const char *s, size_t len, bool plus)
{
        CLEANUP_FREE char *out = xmalloc(len + 1);
        size_t n = 0;

        for (size_t i = 0; i < len; i++) {
                char c = s[i];

                if (c == '+' && plus) {
                        c = ' ';
                } else if (c == '%') {
                        char pair[3] = {};

                        if (len - i < 3)
                                return NULL;
                        memcpy(pair, s + i + 1, 2);
                        if (!hex_decode(pair, &c, 1))
                                return NULL;
                        i += 2;
                }
                /* A NUL would cut the C string short, and the rest would escape every later check. */
                if (c == '\0')
                        return NULL;
                out[n++] = c;
        }
        out[n] = '\0';
        return STEAL(out);
}

static bool is_unreserved(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
               c == '_' || c == '~';
}

char *url_encode(const char *s, bool keep_slash)
{
        struct buf b = {};

        for (; *s; s++) {
                if (is_unreserved(*s) || (keep_slash && *s == '/'))
                        buf_addc(&b, *s);
                else
                        buf_addf(&b, "%%%02X", (unsigned char)*s);
        }
        return buf_steal(&b);
}

char *query_get(const char *query, const char *key, bool *ret_malformed)
{
        for (const char *p = query; *p;) {
                size_t len = strcspn(p, "&"), name_len = strcspn(p, "=&");
                CLEANUP_FREE char *name = url_decode(p, name_len, true);

                if (name && streq(name, key)) {
                        size_t at = name_len < len ? name_len + 1 : len;
                        char *value = url_decode(p + at, len - at, true);

                        if (!value && ret_malformed)
                                *ret_malformed = true;
                        return value;
                }
                p += len;
                p += *p == '&';
        }
        return NULL;
}

const char *http_status_text(int status)
{
        static const struct {
                int status;
                const char *text;
        } table[] = {
                {100, "Continue"}, {101, "Switching Protocols"}, {200, "OK"}, {201, "Created"}, {202, "Accepted"},
                {204, "No Content"}, {206, "Partial Content"}, {301, "Moved Permanently"}, {302, "Found"},
                {303, "See Other"}, {304, "Not Modified"}, {307, "Temporary Redirect"}, {308, "Permanent Redirect"},
                {400, "Bad Request"}, {401, "Unauthorized"}, {402, "Payment Required"}, {403, "Forbidden"},
                {404, "Not Found"}, {405, "Method Not Allowed"}, {406, "Not Acceptable"}, {408, "Request Timeout"},
                {409, "Conflict"}, {410, "Gone"}, {411, "Length Required"}, {412, "Precondition Failed"},
                {413, "Payload Too Large"}, {414, "URI Too Long"}, {415, "Unsupported Media Type"},
                {416, "Range Not Satisfiable"}, {417, "Expectation Failed"}, {422, "Unprocessable Entity"},
                {425, "Too Early"}, {426, "Upgrade Required"}, {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"}, {499, "Client Closed Request"},
                {500, "Internal Server Error"}, {501, "Not Implemented"}, {502, "Bad Gateway"},
                {503, "Service Unavailable"}, {504, "Gateway Timeout"}, {505, "HTTP Version Not Supported"},
                {507, "Insufficient Storage"},
        };

        for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
                if (table[i].status == status)
                        return table[i].text;
        return "Unknown";
}
