/* Theory of operation: strict where two readers could differ. A guest that gets two names past this parser could be let
 * through by the one and served by the other, so whatever is ambiguous (two Host lines, two server_name extensions, folded
 * header lines, blanks before a colon) has no name. TLS handshake messages may be spread over records; HTTP heads are read whole.
 */
#include "vm/net_sniff.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

#define RECORD_HEADER 5
#define RECORD_MAX 16640 /* 2^14 + 256 */
#define HANDSHAKE_HEADER 4
#define RECORD_HANDSHAKE 22
#define CLIENT_HELLO 1
#define EXTENSION_SERVER_NAME 0
#define NAME_TYPE_HOST 0

struct reader {
        const uint8_t *at, *end;
        bool bad;
};

/* A big-endian number of `bytes` bytes. */
static size_t number(struct reader *r, unsigned bytes)
{
        size_t n = 0;

        if ((size_t)(r->end - r->at) < bytes) {
                r->bad = true;
                return 0;
        }
        while (bytes-- > 0)
                n = n << 8 | *r->at++;
        return n;
}

/* The next `len` bytes as a reader of their own. */
static struct reader part(struct reader *r, size_t len)
{
        struct reader ret = {r->at, r->at, false};

        if (r->bad || (size_t)(r->end - r->at) < len) {
                r->bad = ret.bad = true;
                return ret;
        }
        r->at += len;
        ret.end = r->at;
        return ret;
}

/* A vector whose length comes before it in `bytes` bytes. */
static struct reader vector(struct reader *r, unsigned bytes)
{
        size_t len = number(r, bytes);

        return part(r, len);
}

static bool server_name(struct reader extension, char name[NET_DOMAIN_MAX])
{
        struct reader list = vector(&extension, 2);
        size_t type = number(&list, 1);
        struct reader text = vector(&list, 2);

        if (extension.bad || extension.at != extension.end || list.bad || list.at != list.end || type != NAME_TYPE_HOST || text.bad ||
            memchr(text.at, ':', (size_t)(text.end - text.at)))
                return false;
        return net_parse_host((const char *)text.at, (size_t)(text.end - text.at), name);
}

static enum net_sniff client_hello(struct reader hello, char name[NET_DOMAIN_MAX])
{
        struct reader extensions;
        bool found = false;

        part(&hello, 2 + 32); /* version, random */
        vector(&hello, 1);    /* session id */
        vector(&hello, 2);    /* cipher suites */
        vector(&hello, 1);    /* compression methods */
        extensions = vector(&hello, 2);
        if (hello.bad || hello.at != hello.end)
                return NET_SNIFF_NONE;
        while (extensions.at < extensions.end) {
                size_t type = number(&extensions, 2);
                struct reader body = vector(&extensions, 2);

                if (extensions.bad)
                        return NET_SNIFF_NONE;
                if (type != EXTENSION_SERVER_NAME)
                        continue;
                if (found || !server_name(body, name))
                        return NET_SNIFF_NONE;
                found = true;
        }
        return found ? NET_SNIFF_NAME : NET_SNIFF_NONE;
}

static enum net_sniff more(size_t len)
{
        return len < NET_SNIFF_MAX ? NET_SNIFF_MORE : NET_SNIFF_NONE;
}

/* Puts the payloads of the records together until the first message is whole. */
static enum net_sniff sniff_tls(const uint8_t *data, size_t len, char name[NET_DOMAIN_MAX])
{
        uint8_t message[NET_SNIFF_MAX];
        size_t have = 0, at = 0;

        while (len - at >= RECORD_HEADER) {
                size_t length = (size_t)data[at + 3] << 8 | data[at + 4], wanted, there;

                if (data[at] != RECORD_HANDSHAKE || data[at + 1] != 3 || length == 0 || length > RECORD_MAX)
                        return NET_SNIFF_NONE;
                at += RECORD_HEADER;
                there = len - at < length ? len - at : length;
                memcpy(message + have, data + at, there);
                have += there;
                at += there;
                if (have >= 1 && message[0] != CLIENT_HELLO)
                        return NET_SNIFF_NONE;
                if (have >= HANDSHAKE_HEADER) {
                        wanted = HANDSHAKE_HEADER + ((size_t)message[1] << 16 | (size_t)message[2] << 8 | message[3]);
                        if (wanted > NET_SNIFF_MAX)
                                return NET_SNIFF_NONE;
                        if (have >= wanted)
                                return client_hello((struct reader){message + HANDSHAKE_HEADER, message + wanted, false}, name);
                }
                if (there < length)
                        break;
        }
        return more(len);
}

static bool is_token(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* "METHOD target HTTP/1.x" */
static bool request_line_ok(const char *line, size_t len)
{
        const char *space = memchr(line, ' ', len), *last = memrchr(line, ' ', len);

        if (!space || space == line || last <= space + 1 || len - (size_t)(last + 1 - line) != 8 || memcmp(last + 1, "HTTP/1.", 7) != 0 ||
            memchr(space + 1, ' ', (size_t)(last - space - 1)))
                return false;
        for (const char *p = line; p < space; p++)
                if (!is_token(*p))
                        return false;
        return true;
}

/* 1 = the Host line, 0 = another header, -1 = malformed. */
static int header_line(const char *line, size_t len, char name[NET_DOMAIN_MAX])
{
        size_t n = 0, end = len;

        while (n < len && is_token(line[n]))
                n++;
        if (n == 0 || n == len || line[n] != ':')
                return -1;
        if (n != 4 || strncasecmp(line, "host", 4) != 0)
                return 0;
        for (n++; n < end && (line[n] == ' ' || line[n] == '\t'); n++)
                ;
        for (; end > n && (line[end - 1] == ' ' || line[end - 1] == '\t'); end--)
                ;
        return net_parse_host(line + n, end - n, name) ? 1 : -1;
}

static enum net_sniff sniff_http(const char *data, size_t len, char name[NET_DOMAIN_MAX])
{
        const char *end = data + len, *line = data;
        bool first = true, found = false;

        for (const char *newline; (newline = memchr(line, '\n', (size_t)(end - line))); line = newline + 1, first = false) {
                size_t length = (size_t)(newline - line);
                int r;

                if (length > 0 && line[length - 1] == '\r')
                        length--;
                if (memchr(line, '\r', length) || memchr(line, '\0', length))
                        return NET_SNIFF_NONE;
                if (first) {
                        if (!request_line_ok(line, length))
                                return NET_SNIFF_NONE;
                        continue;
                }
                if (length == 0)
                        return found ? NET_SNIFF_NAME : NET_SNIFF_NONE;
                r = header_line(line, length, name);
                if (r < 0 || (r > 0 && found))
                        return NET_SNIFF_NONE;
                found |= r > 0;
        }
        return more(len);
}

enum net_sniff net_sniff(const void *data, size_t len, char name[NET_DOMAIN_MAX])
{
        const uint8_t *bytes = data;

        if (len == 0)
                return NET_SNIFF_MORE;
        if (len > NET_SNIFF_MAX)
                len = NET_SNIFF_MAX;
        if (bytes[0] == RECORD_HANDSHAKE)
                return sniff_tls(bytes, len, name);
        return is_token((char)bytes[0]) ? sniff_http(data, len, name) : NET_SNIFF_NONE;
}
