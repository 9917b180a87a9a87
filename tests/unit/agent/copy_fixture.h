/* A directory with a target tree and an archive, for the tests of COPY. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/copy.h"
#include "base/file.h"
#include "tarmaker.h"

struct fixture {
        char dir[64], archive[128];
        struct tarmaker tar;
        struct copy_result result;
        struct error err;
};

static inline int setup(void **state)
{
        struct fixture *f = calloc(1, sizeof(*f));

        snprintf(f->dir, sizeof(f->dir), "/tmp/test-copy-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
        snprintf(f->archive, sizeof(f->archive), "%s/context.tar", f->dir);
        tar_begin(&f->tar);
        *state = f;
        return 0;
}

static inline int teardown(void **state)
{
        struct fixture *f = *state;

        if (f->tar.a)
                tar_end(&f->tar);
        tree_remove(f->dir, NULL);
        free(f);
        return 0;
}

static inline char *at(struct fixture *f, const char *name)
{
        static char path[4][4400];
        static unsigned turn;

        turn = (turn + 1) % 4;
        snprintf(path[turn], sizeof(path[turn]), "%s/%s", f->dir, name);
        return path[turn];
}

/* The bytes of the tar made so far, in f->tar.data. */
static inline size_t finish_tar(struct fixture *f)
{
        tar_end(&f->tar);
        f->tar.a = NULL;
        return f->tar.len;
}

/* Makes the first `len` bytes of f->tar.data the archive. */
static inline void write_archive(struct fixture *f, size_t len)
{
        FILE *out = fopen(f->archive, "w");

        assert_int_equal(fwrite(f->tar.data, 1, len, out), len);
        fclose(out);
}

/* Copies from the tar made so far (to a place below f->dir, or an absolute one), or from what the test has written since finish_tar(). */
static inline int copy_as(struct fixture *f, const char *source, const char *target, const char *owner, const char *mode)
{
        struct copy_request c = { f->archive, source, *target == '/' ? target : at(f, target), owner, mode };
        int r;

        if (f->tar.a)
                write_archive(f, finish_tar(f));
        f->err = (struct error){};
        r = copy_from_archive(&c, &f->result, &f->err);
        tar_begin(&f->tar);
        return r;
}

static inline int copy(struct fixture *f, const char *source, const char *target)
{
        return copy_as(f, source, target, "root:root", "");
}

static inline struct stat look(struct fixture *f, const char *name)
{
        struct stat st = {};

        if (lstat(at(f, name), &st) < 0)
                st.st_mode = 0;
        return st;
}

static inline void put(struct fixture *f, const char *name, const char *text)
{
        assert_int_equal(file_write_atomic(at(f, name), text, strlen(text), 0644, NULL), 0);
}

static inline void assert_content(struct fixture *f, const char *name, const char *wanted)
{
        struct buf b = {};

        assert_int_equal(file_read(at(f, name), 1 << 20, &b, NULL), 0);
        assert_string_equal(buf_str(&b), wanted);
        buf_free(&b);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
