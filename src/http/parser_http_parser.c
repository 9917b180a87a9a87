/* parser.h over http-parser 2.9 (Debian 12). Its strict mode is a compile-time choice of the packager, so
 * nothing here relies on it: wire.c checks heads itself before they get here.
 */
#include <errno.h>
#include <http_parser.h>
#include <stdlib.h>

#include "base/mem.h"
#include "http/parser.h"

struct parser {
        http_parser lib;
        const struct parser_events *events;
        void *userdata;
};

static int text(http_parser *lib, enum parser_text what, const char *data, size_t len)
{
        struct parser *p = lib->data;

        p->events->on_text(p->userdata, what, data, len);
        return 0;
}

static int on_url(http_parser *lib, const char *data, size_t len)
{
        return text(lib, PARSER_TARGET, data, len);
}

static int on_status(http_parser *lib, const char *data, size_t len)
{
        return text(lib, PARSER_REASON, data, len);
}

static int on_field(http_parser *lib, const char *data, size_t len)
{
        return text(lib, PARSER_FIELD, data, len);
}

static int on_value(http_parser *lib, const char *data, size_t len)
{
        return text(lib, PARSER_VALUE, data, len);
}

static int on_body(http_parser *lib, const char *data, size_t len)
{
        return text(lib, PARSER_BODY, data, len);
}

static int on_headers_complete(http_parser *lib)
{
        struct parser *p = lib->data;

        return p->events->on_head(p->userdata, &(struct parser_head){
                .method = lib->type == HTTP_REQUEST ? http_method_str(lib->method) : NULL,
                .status = lib->type == HTTP_RESPONSE ? lib->status_code : 0,
                .major = lib->http_major,
                .minor = lib->http_minor,
                .upgrade = lib->upgrade,
        });
}

static int on_message_complete(http_parser *lib)
{
        struct parser *p = lib->data;

        p->events->on_complete(p->userdata);
        http_parser_pause(lib, 1); /* what follows belongs to the next message */
        return 0;
}

static const http_parser_settings settings = {
        .on_url = on_url,
        .on_status = on_status,
        .on_header_field = on_field,
        .on_header_value = on_value,
        .on_headers_complete = on_headers_complete,
        .on_body = on_body,
        .on_message_complete = on_message_complete,
};

struct parser *parser_new(bool response, const struct parser_events *events, void *userdata)
{
        struct parser *p = xcalloc(1, sizeof(*p));

        http_parser_init(&p->lib, response ? HTTP_RESPONSE : HTTP_REQUEST);
        p->lib.data = p;
        p->events = events;
        p->userdata = userdata;
        return p;
}

struct parser *parser_free(struct parser *p)
{
        free(p);
        return NULL;
}

ssize_t parser_feed(struct parser *p, const char *data, size_t len)
{
        size_t n = http_parser_execute(&p->lib, &settings, data, len);
        enum http_errno e = HTTP_PARSER_ERRNO(&p->lib);

        return e == HPE_OK || e == HPE_PAUSED ? (ssize_t)n : -EPROTO;
}

int parser_finish(struct parser *p)
{
        enum http_errno e;

        http_parser_execute(&p->lib, &settings, NULL, 0);
        e = HTTP_PARSER_ERRNO(&p->lib);
        return e == HPE_OK || e == HPE_PAUSED ? 0 : -EPROTO;
}
