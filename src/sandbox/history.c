/* Files of a sandbox's history. Appending is one write() to a file opened for it, so entries are whole or, after a crash, torn at the end of the
 * file; the next one then begins on a new line or in a torn record's place, and readers pass over what makes no sense. A file that has reached
 * HISTORY_FILE_MAX is renamed to <name>.old, in place of the one before.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/history-internal.h"

struct history *history_new(const char *data_dir)
{
        struct history *h = xcalloc(1, sizeof *h);
        h->root = path_join(data_dir, "history");
        for (int i = 0; i < HISTORY_STRIPES; i++)
                pthread_mutex_init(&h->stripes[i], NULL);
        return h;
}

void history_free(struct history *h)
{
        if (!h)
                return;
        for (int i = 0; i < HISTORY_STRIPES; i++)
                pthread_mutex_destroy(&h->stripes[i]);
        free(h->root);
        free(h);
}

pthread_mutex_t *history_stripe(struct history *h, const char *id)
{
        unsigned sum = 0;
        for (; *id; id++)
                sum = sum * 31 + (unsigned char)*id;
        return &h->stripes[sum % HISTORY_STRIPES];
}

bool history_is_name(const char *s)
{
        return *s && !s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-")];
}

/* NULL when there can be none. */
static char *file_of(const struct history *h, const char *team, const char *id, const char *name)
{
        return history_is_name(team) && history_is_name(id) ? xasprintf("%s/%s/%s/%s", h->root, team, id, name) : NULL;
}

static void rotate(const char *path)
{
        CLEANUP_FREE char *old = xasprintf("%s.old", path);
        if (rename(path, old) < 0)
                log_warn("rename %s: errno %d", path, errno);
}

static int open_for_append(const char *path)
{
        int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 && errno == ENOENT) {
                CLEANUP_FREE char *dir = xstrndup(path, (size_t)(strrchr(path, '/') - path));
                struct error err = {};
                if (dir_make(dir, 0700, &err) < 0)
                        log_warn("%s", err.message);
                fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        }
        return fd;
}

/* With the stripe. */
static void append(const char *path, size_t record, const void *data, size_t len)
{
        struct stat st;
        if (stat(path, &st) == 0 && st.st_size + (off_t)len > HISTORY_FILE_MAX)
                rotate(path);
        CLEANUP_CLOSE int fd = open_for_append(path);
        char last = '\n';
        if (fd < 0 || fstat(fd, &st) < 0) {
                log_warn("write %s: errno %d", path, errno);
                return;
        }
        off_t torn = record ? st.st_size % (off_t)record : 0;
        if (torn > 0 && ftruncate(fd, st.st_size - torn) < 0)
                log_warn("truncate %s: errno %d", path, errno);
        if (!record && st.st_size > 0 && pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n')
                fd_write_all(fd, "\n", 1);
        int r = fd_write_all(fd, data, len);
        if (r < 0)
                log_warn("write %s: errno %d", path, -r);
}

void history_append(struct history *h, const char *team, const char *id, const char *name, size_t record, const void *data, size_t len)
{
        CLEANUP_FREE char *path = file_of(h, team, id, name);
        if (!path || len == 0)
                return;
        pthread_mutex_lock(history_stripe(h, id));
        append(path, record, data, len);
        pthread_mutex_unlock(history_stripe(h, id));
}

static void read_one(const char *path, size_t record, struct buf *out)
{
        file_read(path, HISTORY_FILE_MAX + HISTORY_ENTRY_MAX, out, NULL);
        if (record)
                out->len -= out->len % record;
        else if (out->len && out->data[out->len - 1] != '\n')
                buf_addc(out, '\n');
}

void history_read(struct history *h, const char *team, const char *id, const char *name, size_t record, struct buf *out)
{
        CLEANUP_FREE char *path = file_of(h, team, id, name), *old = path ? xasprintf("%s.old", path) : NULL;
        if (!path)
                return;
        pthread_mutex_lock(history_stripe(h, id));
        read_one(old, record, out);
        read_one(path, record, out);
        pthread_mutex_unlock(history_stripe(h, id));
}
