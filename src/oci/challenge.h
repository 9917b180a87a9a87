/* WWW-Authenticate headers (RFC 9110 11.6.1), of which registries use Bearer and Basic. Pure. */
#pragma once

#include "base/error.h"

/* Longest header looked at, in bytes. */
#define CHALLENGE_MAX 8192

enum challenge_scheme { CHALLENGE_NONE = 0, CHALLENGE_BASIC, CHALLENGE_BEARER };

struct challenge {
        enum challenge_scheme scheme;
        char *realm, *service, *scope; /* of Bearer; service and scope may be NULL */
};

/* Picks Bearer before Basic out of one header value, which may hold several challenges. ERROR_INVALID when the header
 * is malformed, too long, or a Bearer challenge lacks its realm; scheme NONE when it offers nothing we speak. */
int challenge_parse(const char *header, struct challenge *ret, struct error *err);
void challenge_free(struct challenge *c);
