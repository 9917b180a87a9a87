#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/subprocess.h"
#include "build/context.h"
#include "cache_fixture.h"
#include "vm/disk.h"

#define MEMORY_BYTES_MIN (256UL << 20)

char *dir, *scratch;
struct build_cache *cache;
int serial;
static char *top;

void open_cache(unsigned layers, uint64_t bytes)
{
        struct error err = {};

        if (build_cache_open(dir, layers, bytes, &cache, &err) < 0)
                fail_msg("%s", err.message);
}

/* In memory where there is room: a killed process loses nothing of it, and the many fsyncs cost nothing. */
static const char *place(void)
{
        struct statvfs fs;

        return statvfs("/dev/shm", &fs) == 0 && fs.f_bavail * fs.f_frsize >= MEMORY_BYTES_MIN ? "/dev/shm" : "/tmp";
}

int start(void **state)
{
        (void)state;
        top = xasprintf("%s/test-cache-XXXXXX", place());
        if (!mkdtemp(top))
                fail_msg("no directory %s", top);
        dir = path_join(top, "steps");
        scratch = path_join(top, "scratch");
        return dir_make(scratch, 0700, NULL);
}

int stop(void **state)
{
        (void)state;
        build_cache_close(cache);
        cache = NULL;
        tree_remove(top, NULL);
        free(top);
        free(dir);
        free(scratch);
        return 0;
}

struct build_layer layer(char name, size_t bytes)
{
        struct build_layer l = {.image_env = json_object(), .init = xstrdup("agent")};
        CLEANUP_FREE char *data = xcalloc(1, bytes + 1);

        memset(data, name, bytes);
        memset(l.key, name, BUILD_KEY_LEN);
        build_context_init(&l.context, NULL);
        l.disk = xasprintf("%s/new-%d.qcow2", scratch, serial++);
        assert_int_equal(file_write_atomic(l.disk, data, bytes, 0600, NULL), 0);
        return l;
}

bool put(struct build_layer *l, const struct build_layer *parent, bool replace)
{
        struct error err = {};

        if (build_cache_put(cache, l, parent, NULL, replace, &err) < 0)
                fail_msg("%s", err.message);
        return l->kept;
}

void done(struct build_layer *l)
{
        build_cache_release(cache, l);
        build_layer_free(l);
}

void make_image(const char *path, uint64_t size, const char *const *commands)
{
        const char *argv[64] = {"qemu-io", "-f", "qcow2"};
        struct error err = {};
        size_t n = 3;

        for (; *commands; commands++) {
                assert_true(n + 4 < sizeof(argv) / sizeof(*argv));
                argv[n++] = "-c";
                argv[n++] = *commands;
        }
        argv[n] = path;
        if (disk_overlay_create(path, size, &err) < 0 || subprocess_run(argv, NULL, &err) < 0)
                fail_msg("%s", err.message);
}

struct build_layer image_layer(char name, unsigned pattern, unsigned at)
{
        struct build_layer l = layer(name, 1);
        CLEANUP_FREE char *command = xasprintf("write -P %u %uk 512k", pattern, at * 64);

        unlink(l.disk);
        make_image(l.disk, 16 << 20, (const char *const[]){command, NULL});
        return l;
}

char *content(const char *const *disks)
{
        CLEANUP_FREE char *flat = xasprintf("%s/flat-%d.img", scratch, serial++);
        CLEANUP_BUF struct buf b = {};
        struct error err = {};

        if (disk_flatten(disks, flat, &err) < 0 || file_read(flat, 32 << 20, &b, &err) < 0)
                fail_msg("%s", err.message);
        unlink(flat);
        return buf_steal(&b);
}

char *content_of(const char *names, size_t *ret_layers)
{
        CLEANUP_FREE char *prefix = xasprintf("%s/chain-%d", scratch, serial++);
        char keys[16][BUILD_KEY_LEN + 1] = {};
        struct build_cache_hit h = {};
        const char *list[16], *disks[16] = {};
        struct error err = {};
        char *all;
        size_t n = 0;

        for (size_t i = 0; names[i]; i++) {
                memset(keys[i], names[i], BUILD_KEY_LEN);
                list[i] = keys[i];
        }
        if (build_cache_get(cache, list, strlen(names), prefix, &h, &err) < 0)
                fail_msg("%s", err.message);
        assert_int_equal(h.depth + 1, strlen(names));
        for (size_t i = 0; i < h.layer_count; i++)
                if (h.layers[i].disk)
                        disks[n++] = h.layers[i].disk;
        all = content(disks);
        *ret_layers = h.layer_count;
        for (size_t i = 0; i < h.layer_count; i++)
                done(&h.layers[i]);
        build_cache_hit_free(&h);
        return all;
}
