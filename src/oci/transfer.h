/* One HTTP exchange with a registry over libcurl, redirects included. */
#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

#define TRANSFER_STALL_SECONDS 30
#define TRANSFER_CONNECT_SECONDS 20
#define TRANSFER_REDIRECTS_MAX 10
/* Challenges kept of one answer. */
#define TRANSFER_CHALLENGES_MAX 8

/* A connection pool of one thread. Not shared between threads. */
struct transfer {
        CURL *curl;
        const char *const *insecure; /* hosts that may be spoken to in plain http; NULL-terminated, may be NULL */
        unsigned stall_seconds;      /* a connection silent for so long is given up; 0: the default */
        bool (*stop)(void *data);    /* polled at least once a second; true ends the exchange */
        void *stop_data;
};

struct transfer_reply {
        long status;
        char *content_type, *digest, *retry_after, *content_range;
        char *location;
        char *challenges[TRANSFER_CHALLENGES_MAX];
        size_t challenge_count;
        bool redirected; /* another server than the asked one answered */
        struct buf body; /* of failures cut at 16 KiB; of successes empty when a sink took it */
};

struct transfer_request {
        const char *method; /* GET, HEAD or POST */
        const char *url;
        const char *accept;        /* or NULL */
        const char *authorization; /* value of the header, or NULL; goes to the origin of `url` only */
        const char *post;          /* body of a POST */
        const char *post_type;
        const char *post_target;   /* X-Amz-Target */
        const char *sigv4;         /* curl's provider string, with `sigv4_user` "key:secret"; or NULL */
        const char *sigv4_user;
        bool ranged;               /* ask for bytes from `range_from` on */
        uint64_t range_from;
        size_t limit;              /* of a success body that is collected */
        /* Takes a success body (200, 206): begin() before its first byte, then write(). Negative ends the exchange with
         * that value, `err` filled by the sink. NULL collects into reply->body. */
        int (*begin)(void *data, const struct transfer_reply *r, struct error *err);
        int (*write)(void *data, const void *bytes, size_t len, struct error *err);
        void *data;
};

int transfer_open(struct transfer *t, struct error *err);
void transfer_close(struct transfer *t);

/* 0 when an answer of any status came; the caller frees the reply. Failures: -EAGAIN (ERROR_UNAVAILABLE) what may work
 * when tried again (resets, time-outs, no connection), -ECANCELED, -EPROTO what will not (TLS, bad redirect), -EDQUOT
 * body beyond the limit, or the sink's own. */
int transfer_perform(struct transfer *t, const struct transfer_request *q, struct transfer_reply *ret, struct error *err);
void transfer_reply_free(struct transfer_reply *r);

/* Waits, looking at stop(): 0 or -ECANCELED. */
int transfer_wait(const struct transfer *t, unsigned ms, struct error *err);

/* Is "host[:port]" in the list? */
bool transfer_insecure(const char *const *list, const char *host);

/* scheme://host:port with the port always there; NULL when `url` is none of http or https. The caller frees. */
char *transfer_origin(const char *url);
