/* Theory of operation: input collects in `pending`; what cannot be part of a delimiter any more is handed out at
 * once, so memory is bounded by one chunk plus the delimiter (or one head).
 *
 *   PREAMBLE  up to the first delimiter (which may stand at the very start)
 *   DELIMITER after it: CRLF = a part, "--" = the end, anything else = it was content after all
 *   HEAD      up to an empty line
 *   BODY      up to the next delimiter
 *   DONE      the epilogue is ignored
 */
#include "multipart.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/str.h"
#include "http/message.h"

enum { PREAMBLE, DELIMITER, HEAD, BODY, DONE };

/* Skips to the next ";" outside quotes. */
static const char *next_parameter(const char *p)
{
        bool quoted = false;

        for (; *p; p++) {
                if (quoted && *p == '\\' && p[1])
                        p++;
                else if (*p == '"')
                        quoted = !quoted;
                else if (*p == ';' && !quoted)
                        return p + 1;
        }
        return NULL;
}

static char *parameter_value(const char *p)
{
        struct buf b = {};

        if (*p != '"')
                return xstrndup(p, strcspn(p, "; \t"));
        for (p++; *p && *p != '"'; p++) {
                /* As Go and browsers have it: only \" and \\ are escapes, so C:\x survives. */
                if (*p == '\\' && (p[1] == '"' || p[1] == '\\'))
                        p++;
                buf_addc(&b, *p);
        }
        return buf_steal(&b);
}

/* charset'language'percent-encoded */
static char *extended_value(const char *p)
{
        CLEANUP_FREE char *raw = parameter_value(p);
        char *text = strchr(raw, '\'');

        text = text ? strchr(text + 1, '\'') : NULL;
        return text ? url_decode(text + 1, strlen(text + 1), false) : NULL;
}

char *header_parameter(const char *header, const char *name)
{
        char *plain = NULL, *extended = NULL;
        size_t len = strlen(name);

        for (const char *p = next_parameter(header); p; p = next_parameter(p)) {
                p += strspn(p, " \t");
                if (strncasecmp(p, name, len) != 0)
                        continue;
                if (p[len] == '=' && !plain)
                        plain = parameter_value(p + len + 1);
                else if (p[len] == '*' && p[len + 1] == '=' && !extended)
                        extended = extended_value(p + len + 2);
        }
        if (extended)
                free(plain);
        return extended ? extended : plain;
}

int multipart_init(struct multipart *m, const char *content_type, const struct multipart_ops *ops, void *data,
                   struct error *err)
{
        CLEANUP_FREE char *boundary = header_parameter(content_type, "boundary");

        *m = (struct multipart){ .ops = ops, .data = data };
        if (!boundary || !*boundary)
                return error_set(err, ERROR_INVALID, "no multipart boundary param in Content-Type");
        if (strlen(boundary) > MULTIPART_BOUNDARY_MAX)
                return error_set(err, ERROR_INVALID, "multipart boundary longer than %d", MULTIPART_BOUNDARY_MAX);
        m->delimiter_len = (size_t)snprintf(m->delimiter, sizeof(m->delimiter), "\r\n--%s", boundary);
        /* So that a delimiter at the very start matches as well. */
        buf_adds(&m->pending, "\r\n");
        return 0;
}

void multipart_free(struct multipart *m)
{
        buf_free(&m->pending);
}

/* 1 = consumed something, go on; 0 = needs more. */
static int find_delimiter(struct multipart *m, bool body)
{
        char *at = m->pending.len ? memmem(m->pending.data, m->pending.len, m->delimiter, m->delimiter_len) : NULL;
        size_t safe = at                                  ? (size_t)(at - m->pending.data)
                    : m->pending.len < m->delimiter_len ? 0
                                                        : m->pending.len - m->delimiter_len + 1;
        int r = 0;

        if (body && safe > m->skip)
                r = m->ops->content(m->pending.data + m->skip, safe - m->skip, m->data);
        if (r < 0)
                return r;
        m->skip -= m->skip < safe ? m->skip : safe;
        buf_consume(&m->pending, safe);
        if (!at)
                return 0;
        buf_consume(&m->pending, m->delimiter_len);
        m->in_part = body;
        m->state = DELIMITER;
        return 1;
}

static int end_part(struct multipart *m)
{
        bool open = m->in_part;

        m->in_part = false;
        return open ? m->ops->part_end(m->data) : 0;
}

/* What looked like a delimiter goes on otherwise: it is content (or preamble). */
static int resume_body(struct multipart *m)
{
        m->state = m->in_part ? BODY : PREAMBLE;
        if (!m->in_part)
                return 1;
        int r = m->ops->content(m->delimiter, m->delimiter_len, m->data);

        return r < 0 ? r : 1;
}

static int take_delimiter_end(struct multipart *m, struct error *err)
{
        size_t blanks = 0;
        int r;

        if (m->pending.len >= 2 && memcmp(m->pending.data, "--", 2) == 0) {
                m->state = DONE;
                r = end_part(m);
                return r < 0 ? r : 1;
        }
        while (blanks < m->pending.len && (m->pending.data[blanks] == ' ' || m->pending.data[blanks] == '\t'))
                blanks++;
        if (m->pending.len < blanks + 2 && blanks <= MULTIPART_BLANKS_MAX)
                return 0;
        if (blanks > MULTIPART_BLANKS_MAX || memcmp(m->pending.data + blanks, "\r\n", 2) != 0)
                return resume_body(m);
        if (++m->parts > MULTIPART_PARTS_MAX)
                return error_set(err, ERROR_INVALID, "more than %d parts", MULTIPART_PARTS_MAX);
        r = end_part(m);
        if (r < 0)
                return r;
        /* The CRLF stays: an empty head is then the same as any. */
        buf_consume(&m->pending, blanks);
        m->state = HEAD;
        return 1;
}

static int take_head(struct multipart *m, struct error *err)
{
        char *end = memmem(m->pending.data, m->pending.len, "\r\n\r\n", 4);
        CLEANUP_FREE char *name = NULL, *filename = NULL, *head = NULL;
        char *save = NULL;
        int r;

        if (!end)
                return m->pending.len > MULTIPART_HEAD_MAX
                             ? error_set(err, ERROR_INVALID, "a part's headers are larger than %d bytes", MULTIPART_HEAD_MAX)
                             : 0;
        head = xstrndup(m->pending.data, (size_t)(end - m->pending.data));
        for (char *line = strtok_r(head, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
                if (strncasecmp(line, "Content-Disposition:", 20) != 0 || name || filename)
                        continue;
                name = header_parameter(line, "name");
                filename = header_parameter(line, "filename");
        }
        buf_consume(&m->pending, (size_t)(end - m->pending.data) + 2);
        /* The head's last CRLF stays in front of the body: an empty body's delimiter follows it directly. */
        m->skip = 2;
        m->state = BODY;
        r = m->ops->part(name, filename, m->data);
        return r < 0 ? r : 1;
}

int multipart_feed(struct multipart *m, const void *bytes, size_t len, struct error *err)
{
        int r = 1;

        if (m->state == DONE)
                return 0;
        buf_add(&m->pending, bytes, len);
        while (r > 0) {
                switch (m->state) {
                case PREAMBLE:
                        r = find_delimiter(m, false);
                        break;
                case DELIMITER:
                        r = take_delimiter_end(m, err);
                        break;
                case HEAD:
                        r = take_head(m, err);
                        break;
                case BODY:
                        r = find_delimiter(m, true);
                        break;
                default:
                        buf_clear(&m->pending);
                        return 0;
                }
        }
        return r;
}

int multipart_finish(struct multipart *m, struct error *err)
{
        if (m->state == DONE)
                return 0;
        return error_set(err, ERROR_INVALID, "multipart: NextPart: unexpected end of the body");
}
