/* What goes by age and for room: whole sandboxes. */
#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "sandbox/history-internal.h"

struct kept {
        char *path, *id;
        int64_t written_s;
        uint64_t bytes;
};

struct kept_list {
        struct kept *items;
        size_t count;
};

static struct kept measure(const char *team_dir, const char *id)
{
        struct kept k = { .path = path_join(team_dir, id), .id = xstrdup(id) };
        for (const char *const *name = (const char *const[]){ "log", "log.old", "metrics", "metrics.old", NULL }; *name; name++) {
                CLEANUP_FREE char *file = path_join(k.path, *name);
                struct stat st;
                if (stat(file, &st) < 0)
                        continue;
                k.bytes += (uint64_t)st.st_blocks * 512;
                if (st.st_mtime > k.written_s)
                        k.written_s = st.st_mtime;
        }
        return k;
}

static void list_sandboxes(const char *team_dir, struct kept_list *l)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(team_dir);
        const struct dirent *de;
        while (d && (de = readdir(d))) {
                if (!history_is_name(de->d_name))
                        continue;
                l->items = xreallocarray(l->items, l->count + 1, sizeof *l->items);
                l->items[l->count++] = measure(team_dir, de->d_name);
        }
}

static int by_written(const void *a, const void *b)
{
        const struct kept *x = a, *y = b;
        return x->written_s < y->written_s ? -1 : x->written_s > y->written_s;
}

static void remove_kept(struct history *h, const struct kept *k)
{
        struct error err = {};
        pthread_mutex_lock(history_stripe(h, k->id));
        if (tree_remove(k->path, &err) < 0)
                log_warn("history of sandbox %s: %s", k->id, err.message);
        pthread_mutex_unlock(history_stripe(h, k->id));
}

static void trim(struct history *h, struct kept_list *l, uint64_t bytes_max)
{
        int64_t limit = clock_realtime_ns() / NSEC_PER_SEC - HISTORY_SECONDS;
        uint64_t total = 0;
        for (size_t i = 0; i < l->count; i++)
                total += l->items[i].bytes;
        if (l->count)
                qsort(l->items, l->count, sizeof *l->items, by_written);
        for (size_t i = 0; i < l->count; i++) {
                const struct kept *k = &l->items[i];
                if (k->written_s >= limit && (bytes_max == 0 || total <= bytes_max))
                        break;
                total -= k->bytes;
                remove_kept(h, k);
        }
}

void history_trim(struct history *h, uint64_t bytes_max)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(h->root);
        struct kept_list l = {};
        const struct dirent *de;
        while (d && (de = readdir(d))) {
                CLEANUP_FREE char *team_dir = path_join(h->root, de->d_name);
                if (history_is_name(de->d_name))
                        list_sandboxes(team_dir, &l);
        }
        trim(h, &l, bytes_max);
        for (size_t i = 0; i < l.count; i++) {
                free(l.items[i].path);
                free(l.items[i].id);
        }
        free(l.items);
}
