/* Makes small tars in memory for the tests of layers and COPY archives. */
#pragma once

#include <archive.h>
#include <archive_entry.h>
#include <string.h>
#include <sys/sysmacros.h>

#define TAR_MAX (1 << 20)

struct tarmaker {
        struct archive *a;
        char data[TAR_MAX];
        size_t len;
};

static inline void tar_begin(struct tarmaker *t)
{
        t->a = archive_write_new();
        archive_write_set_format_pax(t->a);
        archive_write_open_memory(t->a, t->data, sizeof(t->data), &t->len);
}

static inline struct archive_entry *tar_entry(const char *name, mode_t type, mode_t mode)
{
        struct archive_entry *e = archive_entry_new();

        archive_entry_set_pathname(e, name);
        archive_entry_set_filetype(e, type);
        archive_entry_set_perm(e, mode);
        archive_entry_set_uid(e, 0);
        archive_entry_set_gid(e, 0);
        archive_entry_set_mtime(e, 1000000000, 0);
        return e;
}

static inline void tar_put(struct tarmaker *t, struct archive_entry *e, const char *content)
{
        archive_entry_set_size(e, content ? (la_int64_t)strlen(content) : 0);
        archive_write_header(t->a, e);
        if (content)
                archive_write_data(t->a, content, strlen(content));
        archive_entry_free(e);
}

static inline void tar_file(struct tarmaker *t, const char *name, mode_t mode, const char *content)
{
        tar_put(t, tar_entry(name, AE_IFREG, mode), content);
}

static inline void tar_dir(struct tarmaker *t, const char *name, mode_t mode)
{
        tar_put(t, tar_entry(name, AE_IFDIR, mode), NULL);
}

static inline void tar_symlink(struct tarmaker *t, const char *name, const char *target)
{
        struct archive_entry *e = tar_entry(name, AE_IFLNK, 0777);

        archive_entry_set_symlink(e, target);
        tar_put(t, e, NULL);
}

static inline void tar_hardlink(struct tarmaker *t, const char *name, const char *target)
{
        struct archive_entry *e = tar_entry(name, AE_IFREG, 0644);

        archive_entry_set_hardlink(e, target);
        tar_put(t, e, NULL);
}

static inline void tar_end(struct tarmaker *t)
{
        archive_write_close(t->a);
        archive_write_free(t->a);
}
