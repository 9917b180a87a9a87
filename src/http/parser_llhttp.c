/* parser.h over llhttp (Debian 13 and later). */
#include <errno.h>
#include <llhttp.h>
#include <stdlib.h>

#include "base/mem.h"
#include "http/parser.h"

struct parser {
        llhttp_t lib;
        llhttp_settings_t settings;
        const struct parser_events *events;
        void *userdata;
};

static int text(llhttp_t *lib, enum parser_text what, const char *data, size_t len)
{
        struct parser *p = lib->data;

        p->events->on_text(p->userdata, what, data, len);
        return 0;
}

static int on_url(llhttp_t *lib, const char *data, size_t len)
{
        return text(lib, PARSER_TARGET, data, len);
}

static int on_status(llhttp_t *lib, const char *data, size_t len)
{
        return text(lib, PARSER_REASON, data, len);
}

static int on_field(llhttp_t *lib, const char *data, size_t len)
{
        return text(lib, PARSER_FIELD, data, len);
}

static int on_value(llhttp_t *lib, const char *data, size_t len)
{
        return text(lib, PARSER_VALUE, data, len);
}

static int on_body(llhttp_t *lib, const char *data, size_t len)
{
        return text(lib, PARSER_BODY, data, len);
}

static int on_headers_complete(llhttp_t *lib)
{
        struct parser *p = lib->data;
        bool request = llhttp_get_type(lib) == HTTP_REQUEST;

        return p->events->on_head(p->userdata, &(struct parser_head){
                .method = request ? llhttp_method_name(llhttp_get_method(lib)) : NULL,
                .status = request ? 0 : llhttp_get_status_code(lib),
                .major = llhttp_get_http_major(lib),
                .minor = llhttp_get_http_minor(lib),
                .upgrade = llhttp_get_upgrade(lib),
        });
}

static int on_message_complete(llhttp_t *lib)
{
        struct parser *p = lib->data;

        p->events->on_complete(p->userdata);
        return HPE_PAUSED; /* what follows belongs to the next message */
}

struct parser *parser_new(bool response, const struct parser_events *events, void *userdata)
{
        struct parser *p = xcalloc(1, sizeof(*p));

        llhttp_settings_init(&p->settings);
        p->settings.on_url = on_url;
        p->settings.on_status = on_status;
        p->settings.on_header_field = on_field;
        p->settings.on_header_value = on_value;
        p->settings.on_headers_complete = on_headers_complete;
        p->settings.on_body = on_body;
        p->settings.on_message_complete = on_message_complete;
        llhttp_init(&p->lib, response ? HTTP_RESPONSE : HTTP_REQUEST, &p->settings);
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
        switch (llhttp_execute(&p->lib, data, len)) {
        case HPE_OK:
                return (ssize_t)len;
        case HPE_PAUSED:
        case HPE_PAUSED_UPGRADE:
                return llhttp_get_error_pos(&p->lib) - data;
        default:
                return -EPROTO;
        }
}

int parser_finish(struct parser *p)
{
        llhttp_errno_t e = llhttp_finish(&p->lib);

        return e == HPE_OK || e == HPE_PAUSED ? 0 : -EPROTO;
}
