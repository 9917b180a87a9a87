/* The algorithm of template-api 15.1: trim, cut at the first ":", cut the left part at the first "/", trim and
 * lower-case each part, match. The order of the checks decides which message a doubly wrong name gets: tag, namespace,
 * alias, as in upstream.
 */
#include "store/names.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define SLUG_MAX 63
#define SHOWN_MAX 256 /* bytes of a bad part that a message repeats */

static bool part_valid(const char *s, bool dots)
{
        size_t n = 0;

        for (; s[n]; n++) {
                char c = s[n];
                bool ok = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || (dots && c == '.');

                if (!ok || n >= NAME_PART_MAX)
                        return false;
        }
        return n > 0;
}

bool name_is_alias(const char *s)
{
        return part_valid(s, false);
}

bool name_is_tag(const char *s)
{
        return part_valid(s, true);
}

bool name_is_template_id(const char *s)
{
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789");

        return n == TEMPLATE_ID_LEN && s[n] == '\0';
}

static int part_error(struct error *err, const char *what, const char *raw)
{
        CLEANUP_FREE char *shown = utf8_scrub(raw, strnlen(raw, SHOWN_MAX));

        return error_set(err, ERROR_INVALID, "invalid %s: %s", what, shown);
}

/* Trims `raw` in place and returns a lower-cased copy, NULL when it does not match. */
static char *part_take(char *raw, bool dots)
{
        char *part = str_lower(xstrdup(str_trim(raw)));

        if (!part_valid(part, dots)) {
                free(part);
                return NULL;
        }
        return part;
}

static char *cut(char *s, char separator)
{
        char *at = strchr(s, separator);

        if (at)
                *at++ = '\0';
        return at;
}

static struct name_ref name_ref_steal(struct name_ref *n)
{
        struct name_ref taken = *n;

        *n = (struct name_ref){};
        return taken;
}

int name_parse(const char *text, struct name_ref *ret, struct error *err)
{
        CLEANUP(name_ref_clear) struct name_ref n = {};
        CLEANUP_FREE char *copy = xstrdup(text);
        char *left = str_trim(copy), *tag = cut(left, ':'), *right = cut(left, '/');

        if (tag && !(n.tag = part_take(tag, true)))
                return part_error(err, "tag", str_trim(tag));
        if (right && !(n.namespace_ = part_take(left, false)))
                return part_error(err, "namespace", str_trim(left));
        if (!(n.alias = part_take(right ? right : left, false)))
                return part_error(err, "template ID", str_trim(right ? right : left));
        if (streq(n.tag, NAME_TAG_DEFAULT)) {
                free(STEAL(n.tag));
                n.explicit_default = true;
        }
        *ret = name_ref_steal(&n);
        return 0;
}

void name_ref_clear(struct name_ref *n)
{
        free(n->namespace_);
        free(n->alias);
        free(n->tag);
        *n = (struct name_ref){};
}

char *name_key(const struct name_ref *n)
{
        return n->namespace_ ? xasprintf("%s/%s", n->namespace_, n->alias) : xstrdup(n->alias);
}

int name_tag_normalise(const char *raw, char **ret, struct error *err)
{
        CLEANUP_FREE char *copy = xstrdup(raw);
        char *tag = part_take(copy, true);

        if (!tag)
                return part_error(err, "tag", raw);
        if (uuid_valid(tag)) {
                free(tag);
                return error_set(err, ERROR_INVALID, "tag cannot be a UUID");
        }
        *ret = tag;
        return 0;
}

static int collect_one(const char *raw, char ***list, struct error *err)
{
        CLEANUP_FREE char *tag = NULL;
        int r = name_tag_normalise(raw, &tag, err);

        if (r < 0)
                return r;
        if (name_list_has(*list, tag))
                return 0;
        if (name_list_len(*list) >= NAME_TAGS_MAX)
                return error_set(err, ERROR_INVALID, "at most %d different tags are possible", NAME_TAGS_MAX);
        *list = name_list_add(*list, tag);
        return 0;
}

int name_tags_collect(const char *first, const char *const *more, size_t count, char ***ret, struct error *err)
{
        char **list = NULL;
        int r = first ? collect_one(first, &list, err) : 0;

        for (size_t i = 0; r == 0 && i < count; i++)
                r = collect_one(more[i], &list, err);
        if (r < 0) {
                name_list_free(list);
                return r;
        }
        *ret = list ? list : name_list_add(NULL, NAME_TAG_DEFAULT);
        return 0;
}

void name_list_free(char **list)
{
        for (char **p = list; p && *p; p++)
                free(*p);
        free(list);
}

size_t name_list_len(char *const *list)
{
        size_t n = 0;

        while (list && list[n])
                n++;
        return n;
}

bool name_list_has(char *const *list, const char *s)
{
        for (; list && *list; list++)
                if (streq(*list, s))
                        return true;
        return false;
}

bool name_lists_overlap(char *const *a, char *const *b)
{
        for (; a && *a; a++)
                if (name_list_has(b, *a))
                        return true;
        return false;
}

char **name_list_copy(char *const *list)
{
        char **copy = xcalloc(name_list_len(list) + 1, sizeof(*copy));

        for (size_t i = 0; list && list[i]; i++)
                copy[i] = xstrdup(list[i]);
        return copy;
}

char **name_list_add(char **list, const char *s)
{
        size_t n = name_list_len(list);

        list = xreallocarray(list, n + 2, sizeof(*list));
        list[n] = xstrdup(s);
        list[n + 1] = NULL;
        return list;
}

char *name_slug(const char *team_name)
{
        char *slug = str_lower(xstrndup(team_name, SLUG_MAX));
        size_t out = 0;

        for (const char *p = slug; *p; p++) {
                bool plain = (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || *p == '_';

                if (plain)
                        slug[out++] = *p;
                else if (out > 0 && slug[out - 1] != '-')
                        slug[out++] = '-';
        }
        while (out > 0 && slug[out - 1] == '-')
                out--;
        slug[out] = '\0';
        if (out == 0) {
                free(slug);
                return xstrdup("team");
        }
        return slug;
}
