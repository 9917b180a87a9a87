/* Names of templates and their tags (template-api 15): parsing, validation, the error texts. Pure values, no I/O.
 *
 *   reference = [ namespace "/" ] alias [ ":" tag ]
 *
 * Namespaces and aliases are of [a-z0-9-_], tags of [a-z0-9-_.]; both are lower-cased, blanks around the parts are
 * dropped. "default" as the tag of a reference means no tag.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define NAME_PART_MAX 128 /* bytes of a namespace, an alias or a tag */
#define NAME_TAGS_MAX 32  /* distinct tags of one build or one request: they must fit one transaction */
#define TEMPLATE_ID_LEN 20
#define NAME_TAG_DEFAULT "default"

struct name_ref {
        char *namespace_; /* or NULL */
        char *alias;
        char *tag;             /* NULL when none or "default" */
        bool explicit_default; /* ":default" was written out */
};

/* Parses a reference. ERROR_INVALID "invalid tag: …", "invalid namespace: …" or "invalid template ID: …" with the part
 * as it was written (scrubbed to UTF-8, cut); endpoints put their prefix in front. `ret` is untouched on failure, and
 * cleared with name_ref_clear() otherwise. */
int name_parse(const char *text, struct name_ref *ret, struct error *err);
void name_ref_clear(struct name_ref *n);

/* The looked-up form in messages: "alias" or "namespace/alias". The caller frees. */
char *name_key(const struct name_ref *n);

/* Of the right characters and length, already lower-case? */
bool name_is_alias(const char *s);
bool name_is_tag(const char *s);
bool name_is_template_id(const char *s); /* the shape only */

/* One tag that is to be assigned: trimmed and lower-cased into `ret` (the caller frees). ERROR_INVALID "invalid tag: …"
 * or "tag cannot be a UUID". */
int name_tag_normalise(const char *raw, char **ret, struct error *err);

/* The tags of a build or an assignment: `first` (from the name; may be NULL) and then `more` (`count` raw ones; may be
 * 0), normalised, without duplicates, in order of first appearance; {"default"} when there is none. NULL-terminated, freed
 * with name_list_free(). ERROR_INVALID also above NAME_TAGS_MAX. */
int name_tags_collect(const char *first, const char *const *more, size_t count, char ***ret, struct error *err);

/* NULL-terminated lists of strings. */
void name_list_free(char **list);
size_t name_list_len(char *const *list);
bool name_list_has(char *const *list, const char *s);
bool name_lists_overlap(char *const *a, char *const *b);
char **name_list_copy(char *const *list);
/* Adds a copy of `s` at the end; returns the new list. `list` may be NULL. */
char **name_list_add(char **list, const char *s);

/* A slug out of a team's free name: lower-case, other characters become "-", at most 63; "team" when nothing is left. The
 * caller frees. */
char *name_slug(const char *team_name);
