/* Talking to the registry that holds one repository: where it is, who we are, and when to try again. Shared by the
 * threads of one pull, each of which brings its own struct transfer.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "oci/oci.h"
#include "oci/transfer.h"

struct endpoint {
        char *base;          /* "https://registry-1.docker.io", no slash at its end */
        bool mirror;         /* no credentials, no second tries: the next endpoint is the second try */
        char *authorization; /* header value that worked last, or NULL */
        int64_t expires_ns;  /* monotonic; when a bearer token is taken for expired */
};

struct session {
        const struct oci_options *options;
        const struct oci_auth *auth; /* NULL when anonymous */
        char *repository;
        struct endpoint endpoints[2]; /* in the order in which they are tried */
        size_t endpoint_count;
        pthread_mutex_t lock;         /* over the endpoints' authorization */
        char *basic;                  /* "Basic …" of the user; of AWS only once it was fetched */
};

/* `o` and `auth` (may be NULL) must outlive the session. */
int session_open(const struct oci_options *o, const struct oci_reference *ref, const struct oci_auth *auth,
                 struct session *ret, struct error *err);
void session_close(struct session *s);

/* One exchange with <base>/v2/<repository>/<path>, `q->url` and `q->authorization` being filled in: signs in on 401,
 * once. Returns as transfer_perform(); the caller judges the status. */
int session_once(struct session *s, struct endpoint *e, struct transfer *t, const struct transfer_request *q,
                 const char *path, struct transfer_reply *ret, struct error *err);

/* The same with second tries after 429, 5xx and broken connections. */
int session_request(struct session *s, struct endpoint *e, struct transfer *t, const struct transfer_request *q,
                    const char *path, struct transfer_reply *ret, struct error *err);

/* Waits before the next try, by retry.h: 0 go on, -ECANCELED, -ENOENT no further try. */
int session_backoff(const struct endpoint *e, struct transfer *t, const struct transfer_reply *reply, unsigned attempt,
                    struct error *err);

/* "registry returned status code 429: <the registry's message> (Retry-After: 120)", free of the user's secrets. The
 * caller frees. */
char *session_describe(struct session *s, const struct transfer_reply *r);
/* The registry's message alone, "" when there is none. */
char *session_message(struct session *s, const struct transfer_reply *r);

/* Answers a 401: takes the challenge up and stores what `e` sends from now on. `used` is the header that was refused, or
 * NULL. 1: try again, 0: nothing that would help, negative: signing in failed. Called with the lock held. */
int session_sign_in(struct session *s, struct endpoint *e, struct transfer *t, const struct transfer_reply *refused,
                    const char *used, struct error *err);

/* Trades AWS keys for the registry's user and password, "user:password" in `ret`. */
int ecr_login(const struct oci_options *o, const struct oci_auth *auth, struct transfer *t, char **ret,
              struct error *err);

/* "Basic <base64 of userpass>"; the caller wipes. */
char *basic_header(const char *userpass);
