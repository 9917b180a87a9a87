#include "path.h"

#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"

static void take_back(struct buf *b, bool rooted, size_t floor)
{
        size_t start = rooted ? 1 : 0;

        if (b->len <= floor) { /* nothing to take back but the root or a run of ".." */
                if (!rooted)
                        buf_adds(b, b->len ? "/.." : "..");
                return;
        }
        while (b->len > start && b->data[b->len - 1] != '/')
                b->len--;
        if (b->len > start)
                b->len--;
        b->data[b->len] = 0;
}

char *path_clean(const char *path)
{
        struct buf b = {};
        bool rooted = *path == '/';
        size_t floor = rooted ? 1 : 0;

        if (rooted)
                buf_addc(&b, '/');
        while (*path) {
                size_t n = strcspn(path, "/");

                if (n == 2 && path[0] == '.' && path[1] == '.') {
                        size_t before = b.len;

                        take_back(&b, rooted, floor);
                        if (b.len > before)
                                floor = b.len;
                } else if (n > 0 && !(n == 1 && path[0] == '.')) {
                        if (b.len > (rooted ? 1U : 0U))
                                buf_addc(&b, '/');
                        buf_add(&b, path, n);
                }
                path += n;
                path += *path == '/';
        }
        if (b.len == 0)
                buf_addc(&b, '.');
        return buf_steal(&b);
}

static char *below(const char *home, const char *rest)
{
        CLEANUP_FREE char *joined = xasprintf("%s/%s", home, rest);

        return path_clean(joined);
}

int path_resolve(const char *path, const char *home, const char *workdir, char **ret, struct error *err)
{
        if (*path == 0 && workdir)
                path = workdir;
        if (*path == '~') {
                if (path[1] && path[1] != '/' && path[1] != '\\')
                        return error_set(err, ERROR_INVALID, "cannot expand user-specific home dir");
                *ret = below(home, path[1] ? path + 2 : "");
                return 0;
        }
        *ret = *path == '/' ? xstrdup(path) : below(home, path);
        return 0;
}
