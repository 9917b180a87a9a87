#include "build/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "build/context.h"

#define CONTEXT_FORMAT 1
#define CONTEXT_BYTES_MAX (64UL << 20) /* a build environment is bounded by the request that made it */

struct entry {
        char key[BUILD_KEY_LEN + 1];
        char instance[BUILD_INSTANCE_LEN + 1];
        char *parent_key, *parent_instance; /* or NULL */
        char *disk;                         /* file name inside the directory, or NULL */
        int64_t used_ns;
        uint64_t bytes;
        unsigned pins;
        bool doomed; /* inside drop() */
};

struct build_cache {
        pthread_mutex_t lock;
        char *dir;
        unsigned max_layers;
        uint64_t max_bytes;
        struct entry **entries;
        size_t count, cap;
        uint64_t bytes;
};

void build_layer_free(struct build_layer *l)
{
        if (!l)
                return;
        free(l->disk);
        build_context_free(&l->context);
        json_decref(l->image_env);
        free(l->init);
        *l = (struct build_layer){};
}

static void entry_free(struct entry *e)
{
        free(e->parent_key);
        free(e->parent_instance);
        free(e->disk);
        free(e);
}

static char *entry_path(const struct build_cache *c, const char *key, const char *name)
{
        return name ? xasprintf("%s/%s/%s", c->dir, key, name) : xasprintf("%s/%s", c->dir, key);
}

static struct entry *find(const struct build_cache *c, const char *key)
{
        for (size_t i = 0; i < c->count; i++)
                if (streq(c->entries[i]->key, key))
                        return c->entries[i];
        return NULL;
}

static void add(struct build_cache *c, struct entry *e)
{
        if (c->count == c->cap) {
                c->cap = c->cap ? 2 * c->cap : 16;
                c->entries = xreallocarray(c->entries, c->cap, sizeof(*c->entries));
        }
        c->entries[c->count++] = e;
        c->bytes += e->bytes;
}

static bool stands_on_doomed(const struct build_cache *c, const struct entry *e)
{
        for (size_t i = 0; i < c->count; i++)
                if (c->entries[i]->doomed && streq(c->entries[i]->key, e->parent_key))
                        return true;
        return false;
}

/* The layers on a doomed one are doomed. */
static void doom_children(struct build_cache *c)
{
        bool more = true;

        while (more) {
                more = false;
                for (size_t i = 0; i < c->count; i++)
                        if (!c->entries[i]->doomed && stands_on_doomed(c, c->entries[i]))
                                c->entries[i]->doomed = more = true;
        }
}

static void drop_at(struct build_cache *c, size_t i)
{
        struct entry *e = c->entries[i];
        CLEANUP_FREE char *path = entry_path(c, e->key, NULL);

        c->entries[i] = c->entries[--c->count];
        c->bytes -= e->bytes;
        entry_free(e);
        tree_remove(path, NULL);
}

/* Takes a layer and all that stands on it out of the index and off the disk. */
static void drop(struct build_cache *c, struct entry *e)
{
        e->doomed = true;
        doom_children(c);
        for (size_t i = 0; i < c->count;)
                if (c->entries[i]->doomed)
                        drop_at(c, i); /* another one is at i now */
                else
                        i++;
}

static bool has_child(const struct build_cache *c, const struct entry *e)
{
        for (size_t i = 0; i < c->count; i++)
                if (streq(c->entries[i]->parent_key, e->key))
                        return true;
        return false;
}

/* Evicts until `layers` more layers of `bytes` more bytes fit; false when that cannot be. */
static bool make_room(struct build_cache *c, unsigned layers, uint64_t bytes)
{
        if (bytes > c->max_bytes || layers > c->max_layers)
                return false;
        while (c->count + layers > c->max_layers || c->bytes + bytes > c->max_bytes) {
                struct entry *oldest = NULL;

                for (size_t i = 0; i < c->count; i++) {
                        struct entry *e = c->entries[i];

                        if (!e->pins && !has_child(c, e) && (!oldest || e->used_ns < oldest->used_ns))
                                oldest = e;
                }
                if (!oldest)
                        return false;
                drop(c, oldest);
        }
        return true;
}

static int read_context(const struct build_cache *c, const char *key, json_t **ret, struct error *err)
{
        CLEANUP_FREE char *path = entry_path(c, key, "context.json");
        CLEANUP_BUF struct buf b = {};
        int r = file_read(path, CONTEXT_BYTES_MAX, &b, err);

        if (r < 0)
                return r;
        r = json_parse(b.data, b.len, ret, err);
        if (r < 0)
                return error_wrap(err, r, "%s", path);
        if (json_int(*ret, "format", 0) != CONTEXT_FORMAT || !json_str(*ret, "instance") ||
            strlen(json_str(*ret, "instance")) != BUILD_INSTANCE_LEN || !json_str(*ret, "init")) {
                json_decref(*ret);
                *ret = NULL;
                return error_set(err, ERROR_INTERNAL, "%s has another format", path);
        }
        return 0;
}

static bool disk_name_valid(const char *name)
{
        return streq(name, "layer.img") || streq(name, "layer.qcow2");
}

/* One directory of the cache as found at start; NULL when it is not a whole layer. */
static struct entry *load(const struct build_cache *c, const char *key)
{
        CLEANUP_FREE char *dir = entry_path(c, key, NULL), *context = entry_path(c, key, "context.json");
        CLEANUP_JSON json_t *j = NULL;
        struct entry *e;
        struct stat st;

        if (!str_is_hex(key, BUILD_KEY_LEN) || read_context(c, key, &j, NULL) < 0 || stat(context, &st) < 0)
                return NULL;
        if (json_str(j, "disk")) {
                CLEANUP_FREE char *disk = entry_path(c, key, json_str(j, "disk"));

                if (!disk_name_valid(json_str(j, "disk")) || !path_exists(disk))
                        return NULL;
        }
        e = xcalloc(1, sizeof(*e));
        strcpy(e->key, key);
        strcpy(e->instance, json_str(j, "instance"));
        e->parent_key = xstrdup_or_null(json_str(j, "parentKey"));
        e->parent_instance = xstrdup_or_null(json_str(j, "parentInstance"));
        e->disk = xstrdup_or_null(json_str(j, "disk"));
        e->used_ns = st.st_mtim.tv_sec * NSEC_PER_SEC + st.st_mtim.tv_nsec;
        e->bytes = tree_allocated_bytes(dir);
        return e;
}

static bool orphan(const struct build_cache *c, const struct entry *e)
{
        const struct entry *parent;

        if (!e->parent_key)
                return false;
        parent = find(c, e->parent_key);
        return !parent || !streq(parent->instance, e->parent_instance);
}

static void drop_orphans(struct build_cache *c)
{
        for (size_t i = 0; i < c->count;)
                if (orphan(c, c->entries[i])) {
                        drop(c, c->entries[i]);
                        i = 0;
                } else {
                        i++;
                }
}

static int scan(struct build_cache *c, struct error *err)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(c->dir);
        struct dirent *de;

        if (!d)
                return error_errno(err, errno, "open %s", c->dir);
        while ((de = readdir(d))) {
                struct entry *e;

                if (de->d_name[0] == '.')
                        continue;
                e = load(c, de->d_name);
                if (e) {
                        add(c, e);
                } else {
                        CLEANUP_FREE char *path = entry_path(c, de->d_name, NULL);

                        tree_remove(path, NULL);
                }
        }
        return 0;
}

int build_cache_open(const char *dir, unsigned max_layers, uint64_t max_bytes, struct build_cache **ret,
                     struct error *err)
{
        struct build_cache *c;
        int r = dir_make(dir, 0755, err);

        if (r < 0)
                return r;
        c = xcalloc(1, sizeof(*c));
        pthread_mutex_init(&c->lock, NULL);
        c->dir = xstrdup(dir);
        c->max_layers = max_layers;
        c->max_bytes = max_bytes;
        r = scan(c, err);
        if (r < 0) {
                build_cache_close(c);
                return r;
        }
        drop_orphans(c);
        make_room(c, 0, 0);
        *ret = c;
        return 0;
}

void build_cache_close(struct build_cache *c)
{
        if (!c)
                return;
        for (size_t i = 0; i < c->count; i++)
                entry_free(c->entries[i]);
        free(c->entries);
        free(c->dir);
        pthread_mutex_destroy(&c->lock);
        free(c);
}

static void touch(struct build_cache *c, struct entry *e)
{
        CLEANUP_FREE char *path = entry_path(c, e->key, "context.json");

        e->used_ns = clock_realtime_ns();
        /* Only the order of eviction after a restart depends on it. */
        (void)utimensat(AT_FDCWD, path, NULL, 0);
}

static int take(struct build_cache *c, struct entry *e, const char *link_prefix, struct build_layer *ret,
                struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        struct build_layer l = {};
        int r = read_context(c, e->key, &j, NULL);

        if (r < 0 || !build_context_from_json(j, &l.context)) {
                drop(c, e); /* damaged: build it again */
                return 0;
        }
        if (e->disk) {
                CLEANUP_FREE char *from = entry_path(c, e->key, e->disk);

                l.disk = xasprintf("%s%s", link_prefix, strrchr(e->disk, '.'));
                if (link(from, l.disk) < 0) {
                        r = error_errno(err, errno, "link %s to %s", from, l.disk);
                        build_layer_free(&l);
                        return r;
                }
        }
        strcpy(l.key, e->key);
        strcpy(l.instance, e->instance);
        l.image_env = json_is_object(json_object_get(j, "imageEnv")) ? json_deep_copy(json_object_get(j, "imageEnv"))
                                                                     : json_object();
        l.init = xstrdup(json_str(j, "init"));
        l.kept = true;
        e->pins++;
        touch(c, e);
        *ret = l;
        return 1;
}

int build_cache_get(struct build_cache *c, const char *key, const char *parent_instance, const char *link_prefix,
                    struct build_layer *ret, struct error *err)
{
        struct entry *e;
        int r = 0;

        pthread_mutex_lock(&c->lock);
        e = find(c, key);
        if (e && !streq(e->parent_instance, parent_instance))
                drop(c, e); /* stands on a layer that was rebuilt since */
        else if (e)
                r = take(c, e, link_prefix, ret, err);
        pthread_mutex_unlock(&c->lock);
        return r;
}

static int fsync_path(const char *path, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd < 0 || fsync(fd) < 0)
                return error_errno(err, errno, "fsync %s", path);
        return 0;
}

static int write_context(const char *dir, const struct build_layer *l, const struct entry *e, struct error *err)
{
        CLEANUP_FREE char *path = path_join(dir, "context.json"), *text = NULL;
        CLEANUP_JSON json_t *j = build_context_to_json(&l->context);

        json_object_set_new(j, "format", json_integer(CONTEXT_FORMAT));
        json_object_set_new(j, "instance", json_string(l->instance));
        json_object_set_new(j, "init", json_string(l->init));
        json_object_set_new(j, "imageEnv", l->image_env ? json_deep_copy(l->image_env) : json_object());
        if (e->parent_key)
                json_object_set_new(j, "parentKey", json_string(e->parent_key));
        if (e->parent_instance)
                json_object_set_new(j, "parentInstance", json_string(e->parent_instance));
        if (e->disk)
                json_object_set_new(j, "disk", json_string(e->disk));
        text = json_text(j);
        return file_write_atomic(path, text, strlen(text), 0600, err);
}

/* Everything that may take long, beside the cache and without its lock: the layer's directory under a name that the
 * next start removes. */
static int prepare(const struct build_cache *c, const struct build_layer *l, struct entry *e, char **ret_dir,
                   struct error *err)
{
        CLEANUP_FREE char *dir = xasprintf("%s/%s.%s.tmp", c->dir, l->key, l->instance);
        int r = dir_make(dir, 0755, err);

        if (r < 0)
                return r;
        if (l->disk) {
                CLEANUP_FREE char *to = NULL;

                e->disk = xstrdup(str_ends(l->disk, ".qcow2") ? "layer.qcow2" : "layer.img");
                to = path_join(dir, e->disk);
                if (link(l->disk, to) < 0)
                        r = error_errno(err, errno, "link %s to %s", l->disk, to);
                else
                        r = fsync_path(to, err);
        }
        if (r >= 0)
                r = write_context(dir, l, e, err);
        e->bytes = tree_allocated_bytes(dir);
        *ret_dir = STEAL(dir);
        return r;
}

static bool admissible(struct build_cache *c, const struct entry *e, const struct build_layer *parent, bool replace)
{
        struct entry *old = find(c, e->key), *p;

        if (parent) {
                p = find(c, parent->key);
                if (!parent->kept || !p || !streq(p->instance, parent->instance))
                        return false; /* nobody could use it */
        }
        if (old && !replace && streq(old->parent_instance, e->parent_instance))
                return false; /* another build was faster */
        if (old)
                drop(c, old);
        return make_room(c, 1, e->bytes);
}

int build_cache_put(struct build_cache *c, struct build_layer *layer, const struct build_layer *parent,
                    const char *parent_instance, bool replace, struct error *err)
{
        CLEANUP_FREE char *dir = NULL, *to = entry_path(c, layer->key, NULL);
        struct entry *e = xcalloc(1, sizeof(*e));
        int r;

        layer->kept = false;
        random_id(layer->instance, BUILD_INSTANCE_LEN);
        strcpy(e->key, layer->key);
        strcpy(e->instance, layer->instance);
        e->parent_key = parent ? xstrdup(parent->key) : NULL;
        e->parent_instance = xstrdup_or_null(parent ? parent->instance : parent_instance);
        r = prepare(c, layer, e, &dir, err);
        pthread_mutex_lock(&c->lock);
        if (r >= 0 && admissible(c, e, parent, replace)) {
                r = file_publish(dir, to, err);
                if (r >= 0) {
                        e->used_ns = clock_realtime_ns();
                        e->pins = 1;
                        add(c, e);
                        layer->kept = true;
                }
        }
        pthread_mutex_unlock(&c->lock);
        if (!layer->kept) {
                entry_free(e);
                if (dir)
                        tree_remove(dir, NULL);
        }
        return r;
}

void build_cache_release(struct build_cache *c, const struct build_layer *l)
{
        struct entry *e;

        if (!l->kept)
                return;
        pthread_mutex_lock(&c->lock);
        e = find(c, l->key);
        if (e && streq(e->instance, l->instance) && e->pins)
                e->pins--;
        pthread_mutex_unlock(&c->lock);
}

unsigned build_cache_count(struct build_cache *c)
{
        unsigned n;

        pthread_mutex_lock(&c->lock);
        n = (unsigned)c->count;
        pthread_mutex_unlock(&c->lock);
        return n;
}

uint64_t build_cache_bytes(struct build_cache *c)
{
        uint64_t n;

        pthread_mutex_lock(&c->lock);
        n = c->bytes;
        pthread_mutex_unlock(&c->lock);
        return n;
}
