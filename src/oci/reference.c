/* Image references, by the grammar of Docker's `reference` package: [registry/]repository[:tag][@digest].
 *
 * The first path component is a registry when it holds a dot or a colon, is "localhost" or has an upper-case letter;
 * otherwise the image lives on docker.io, where a single component gets "library/" in front. Pure: no I/O.
 */
#include <ctype.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/digest.h"
#include "oci/oci.h"

/* Whole reference, repository and tag, as the distribution spec bounds them. */
#define REFERENCE_MAX 1024
#define REPOSITORY_MAX 255
#define TAG_MAX 128
#define SHOWN_MAX 200

static int refuse(const char *s, const char *why, struct error *err)
{
        CLEANUP_FREE char *shown = utf8_scrub(s, strnlen(s, SHOWN_MAX));

        return error_set(err, ERROR_INVALID, "invalid image reference '%s': %s", shown, why);
}

static bool lower_alnum(char c)
{
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* Length of the separator at `s` ("." "_" "__" or any run of "-"), 0 when there is none. */
static size_t separator(const char *s)
{
        if (*s == '.')
                return 1;
        if (*s == '_')
                return s[1] == '_' ? 2 : 1;
        return strspn(s, "-");
}

static bool repository_valid(const char *s)
{
        if (strlen(s) > REPOSITORY_MAX || !lower_alnum(*s))
                return false;
        while (*s) {
                size_t n;

                while (lower_alnum(*s))
                        s++;
                if (*s == '\0')
                        return true;
                n = *s == '/' ? 1 : separator(s);
                if (n == 0 || !lower_alnum(s[n]))
                        return false;
                s += n;
        }
        return true;
}

static bool tag_valid(const char *s)
{
        size_t n = strlen(s);

        if (n == 0 || n > TAG_MAX || *s == '.' || *s == '-')
                return false;
        for (; *s; s++)
                if (!isascii(*s) || (!isalnum(*s) && !strchr("_.-", *s)))
                        return false;
        return true;
}

static bool port_valid(const char *s)
{
        uint64_t port;

        return str_to_u64(s, 65535, &port) && port > 0;
}

/* host[:port]; the host is dotted labels or an IPv6 address in brackets. */
static bool registry_valid(const char *s)
{
        const char *p = s;

        if (*s == '[') {
                size_t n = strspn(s + 1, "0123456789abcdefABCDEF:.");

                if (n == 0 || s[1 + n] != ']')
                        return false;
                p = s + n + 2;
        } else {
                for (; *p && *p != ':'; p++) {
                        bool edge = p == s || p[-1] == '.' || p[1] == '.' || p[1] == ':' || p[1] == '\0';

                        if (!isascii(*p) || (!isalnum(*p) && (edge || !strchr(".-", *p))))
                                return false;
                }
                if (p == s)
                        return false;
        }
        return *p == '\0' || (*p == ':' && port_valid(p + 1));
}

static bool names_registry(const char *component)
{
        if (strpbrk(component, ".:[") || streq(component, "localhost"))
                return true;
        for (; *component; component++)
                if (isascii(*component) && isupper(*component))
                        return true;
        return false;
}

/* Cuts "[registry/]repository" and fills in what Docker leaves out. */
static const char *split_name(char *name, struct oci_reference *r)
{
        char *slash = strchr(name, '/');

        if (slash) {
                *slash = '\0';
                if (names_registry(name)) {
                        if (!registry_valid(name))
                                return "the registry is no valid host[:port]";
                        r->registry = xstrdup(streq(name, "index.docker.io") ? "docker.io" : name);
                        name = slash + 1;
                } else
                        *slash = '/';
        }
        if (!repository_valid(name))
                return "the repository must be lower-case letters and digits, separated by '/', '.', '_', '__' or '-'";
        if (str_is_hex(name, 64))
                return "an image ID is no repository name";
        if (!r->registry)
                r->registry = xstrdup("docker.io");
        r->repository = streq(r->registry, "docker.io") && !strchr(name, '/') ? xasprintf("library/%s", name)
                                                                             : xstrdup(name);
        /* With what was filled in: the full text must be a reference itself. */
        if (strlen(r->repository) > REPOSITORY_MAX)
                return "the repository is longer than 255 characters";
        return NULL;
}

static const char *split(char *s, struct oci_reference *r)
{
        char *at = strchr(s, '@'), *slash, *colon;

        if (at) {
                *at = '\0';
                if (!digest_valid(at + 1))
                        return "the digest must be sha256: and 64 lower-case hex digits";
                r->digest = xstrdup(at + 1);
        }
        slash = strrchr(s, '/');
        colon = strchr(slash ? slash : s, ':');
        if (colon) {
                *colon = '\0';
                if (!tag_valid(colon + 1))
                        return "the tag must be 1 to 128 letters, digits, '_', '.' or '-', not beginning with '.' or '-'";
                r->tag = xstrdup(colon + 1);
        } else if (!at)
                r->tag = xstrdup("latest");
        return split_name(s, r);
}

int oci_reference_parse(const char *s, struct oci_reference *ret, struct error *err)
{
        struct oci_reference r = {};
        CLEANUP_FREE char *copy = NULL;
        const char *why;

        if (!*s)
                return refuse(s, "it is empty", err);
        if (strlen(s) > REFERENCE_MAX)
                return refuse(s, "it is too long", err);
        copy = xstrdup(s);
        why = split(copy, &r);
        if (why) {
                oci_reference_free(&r);
                return refuse(s, why, err);
        }
        *ret = r;
        return 0;
}

void oci_reference_free(struct oci_reference *r)
{
        free(r->registry);
        free(r->repository);
        free(r->tag);
        free(r->digest);
        *r = (struct oci_reference){};
}
