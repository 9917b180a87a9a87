/* A tokenizer over "scheme [param=value, …][, scheme …]". A word that is followed by "=" is a parameter of the scheme
 * before it; any other word begins a new challenge. Unknown schemes and parameters are skipped.
 */
#include "oci/challenge.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"
#include "base/mem.h"

static bool is_token(char c)
{
        return isascii(c) && (isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c)));
}

static void skip_blank(const char **p)
{
        while (**p == ' ' || **p == '\t' || **p == ',')
                (*p)++;
}

static char *take_token(const char **p)
{
        const char *start = *p;

        while (is_token(**p))
                (*p)++;
        return xstrndup(start, (size_t)(*p - start));
}

/* A quoted string or a token; NULL when the quotes do not close. */
static char *take_value(const char **p)
{
        CLEANUP_BUF struct buf b = {};

        if (**p != '"')
                return take_token(p);
        for ((*p)++; **p != '"'; (*p)++) {
                if (**p == '\\')
                        (*p)++;
                if (**p == '\0')
                        return NULL;
                buf_addc(&b, **p);
        }
        (*p)++;
        return buf_steal(&b);
}

static void keep(struct challenge *c, const char *name, char **value)
{
        char **to = strcasecmp(name, "realm") == 0     ? &c->realm
                    : strcasecmp(name, "service") == 0 ? &c->service
                    : strcasecmp(name, "scope") == 0   ? &c->scope
                                                       : NULL;

        if (to && !*to)
                *to = STEAL(*value);
}

/* "=": a parameter of `c`; returns false when it is malformed. */
static bool take_parameter(const char **p, const char *name, struct challenge *c)
{
        CLEANUP_FREE char *value = NULL;

        (*p)++;
        while (**p == ' ' || **p == '\t')
                (*p)++;
        if (**p == '=') { /* padding of a token68, as Negotiate sends it */
                while (**p == '=')
                        (*p)++;
                return true;
        }
        value = take_value(p);
        if (!value)
                return false;
        keep(c, name, &value);
        return true;
}

static enum challenge_scheme scheme_of(const char *word)
{
        if (strcasecmp(word, "bearer") == 0)
                return CHALLENGE_BEARER;
        return strcasecmp(word, "basic") == 0 ? CHALLENGE_BASIC : CHALLENGE_NONE;
}

/* Keeps the better of the two in `best` and empties `c` for the next challenge. */
static void prefer(struct challenge *best, struct challenge *c)
{
        if (c->scheme > best->scheme) {
                challenge_free(best);
                *best = *c;
                *c = (struct challenge){};
        } else
                challenge_free(c);
}

static bool parse(const char *p, struct challenge *best, struct challenge *current)
{
        for (skip_blank(&p); *p; skip_blank(&p)) {
                CLEANUP_FREE char *word = take_token(&p);
                const char *after = p;

                if (!*word)
                        return false;
                while (*after == ' ' || *after == '\t')
                        after++;
                if (*after == '=') {
                        p = after;
                        if (!take_parameter(&p, word, current))
                                return false;
                } else {
                        prefer(best, current);
                        current->scheme = scheme_of(word);
                }
        }
        prefer(best, current);
        return true;
}

int challenge_parse(const char *header, struct challenge *ret, struct error *err)
{
        struct challenge best = {}, current = {};
        bool good = strlen(header) <= CHALLENGE_MAX && parse(header, &best, &current);

        challenge_free(&current);
        if (good && best.scheme == CHALLENGE_BEARER && (!best.realm || !*best.realm))
                good = false;
        if (!good) {
                challenge_free(&best);
                return error_set(err, ERROR_INVALID, "the registry's WWW-Authenticate header is malformed");
        }
        *ret = best;
        return 0;
}

void challenge_free(struct challenge *c)
{
        free(c->realm);
        free(c->service);
        free(c->scope);
        *c = (struct challenge){};
}
