/* The seam to the packaged HTTP/1 parser: llhttp where the release has it, else http-parser. Exactly one of
 * parser_llhttp.c and parser_http_parser.c is compiled (src/http/meson.build). One parser takes one message:
 * first its complete head in one call, then its body. Internal to src/http/.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum parser_text {
        PARSER_TARGET,
        PARSER_REASON,
        PARSER_FIELD,
        PARSER_VALUE,
        PARSER_BODY,
};

struct parser_head {
        const char *method; /* requests; static */
        int status;         /* responses */
        int major, minor;
        bool upgrade;
};

enum parser_verdict {
        PARSER_BODY_FOLLOWS = 0,
        PARSER_NO_BODY = 1,  /* whatever the headers claim (answer to HEAD) */
        PARSER_REFUSE = -1,
};

struct parser_events {
        /* A piece of text; the same text may come in several pieces. FIELD and VALUE also for trailers. */
        void (*on_text)(void *userdata, enum parser_text what, const char *data, size_t len);
        enum parser_verdict (*on_head)(void *userdata, const struct parser_head *head);
        void (*on_complete)(void *userdata);
};

struct parser;
struct parser *parser_new(bool response, const struct parser_events *events, void *userdata);
struct parser *parser_free(struct parser *p); /* accepts and returns NULL */

/* Feeds bytes and stops behind the end of the message. Returns the bytes consumed or -EPROTO. */
ssize_t parser_feed(struct parser *p, const char *data, size_t len);
/* The peer closed: 0 when that ends the message (a response without a length), else -EPROTO. */
int parser_finish(struct parser *p);
