/* A store in a temporary directory for the tests of src/store. */
#pragma once

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "store/records.h"

struct temporary {
        char *dir, *url;
        struct store *store;
        struct records *records;
};

static inline void temporary_reopen(struct temporary *t)
{
        struct error err;

        records_close(t->records);
        store_close(t->store);
        assert_int_equal(store_open(t->url, &t->store, &err), 0);
        assert_int_equal(records_open(t->store, &t->records, &err), 0);
}

static inline int temporary_setup(void **state)
{
        struct temporary *t = xcalloc(1, sizeof(*t));

        t->dir = xstrdup("/tmp/vmon-store-XXXXXX");
        if (!mkdtemp(t->dir))
                return -1;
        t->url = xasprintf("sqlite:%s/vmon.db", t->dir);
        temporary_reopen(t);
        *state = t;
        return 0;
}

static inline int temporary_teardown(void **state)
{
        struct temporary *t = *state;

        records_close(t->records);
        store_close(t->store);
        tree_remove(t->dir, NULL);
        free(t->dir);
        free(t->url);
        free(t);
        return 0;
}

/* A team with default limits; the caller frees. */
static inline struct team *temporary_team(struct temporary *t, const char *slug, bool is_system)
{
        struct team *team = xcalloc(1, sizeof(*team));
        struct error err;

        team_defaults(team);
        team->id = xcalloc(1, UUID_LEN + 1);
        random_uuid(team->id);
        team->name = xstrdup(slug);
        team->slug = xstrdup(slug);
        team->system = is_system;
        assert_int_equal(records_team_create(t->records, team, &err), 0);
        return team;
}

struct registered {
        struct template_record *template;
        struct build_record *build;
};

static inline void registered_free(struct registered *g)
{
        template_record_free(g->template);
        build_record_free(g->build);
}

/* Registers a build with one tag. */
static inline int temporary_register(struct temporary *t, const struct team *team, const char *alias, const char *tag,
                                     struct registered *ret, struct error *err)
{
        const char *tags[] = { tag, NULL };
        struct build_request q = { .alias = alias, .tags = tags, .vcpus = 2, .memory_mb = 1024 };

        return records_build_register(t->records, team, &q, &ret->template, &ret->build, err);
}

/* Starts a registered build and makes it ready. */
static inline void temporary_finish(struct temporary *t, const char *build_id)
{
        struct build_record result = { .id = (char *)build_id, .envd_version = (char *)"0.5.20" };
        struct error err;

        assert_int_equal(records_build_start(t->records, build_id, &err), 0);
        assert_int_equal(records_build_ready(t->records, &result, &err), 0);
}

/* A ready build of alias:tag; its ID (the caller frees). */
static inline char *temporary_ready(struct temporary *t, const struct team *team, const char *alias, const char *tag)
{
        struct registered g = {};
        struct error err;
        char *id;

        assert_int_equal(temporary_register(t, team, alias, tag, &g, &err), 0);
        temporary_finish(t, g.build->id);
        id = xstrdup(g.build->id);
        registered_free(&g);
        return id;
}
