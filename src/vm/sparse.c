#include "vm/sparse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"

#define PAGE 4096
#define WINDOW (1u << 20)

static bool is_zero(const char *page)
{
        return page[0] == 0 && memcmp(page, page + 1, PAGE - 1) == 0;
}

struct run {
        int fd;
        off_t from, to; /* zeros not yet punched */
        uint64_t punched;
};

static int punch(struct run *run)
{
        if (run->to > run->from) {
                if (fallocate(run->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, run->from, run->to - run->from) < 0)
                        return -errno;
                run->punched += (uint64_t)(run->to - run->from);
        }
        run->from = run->to = 0;
        return 0;
}

static int scan_window(struct run *run, const char *window, size_t len, off_t at)
{
        for (size_t i = 0; i + PAGE <= len; i += PAGE) {
                off_t page = at + (off_t)i;
                bool zero = is_zero(window + i);
                int r = zero && run->to == page ? 0 : punch(run);

                if (r < 0)
                        return r;
                if (zero && run->from == run->to)
                        run->from = page;
                if (zero)
                        run->to = page + PAGE;
        }
        return 0;
}

/* Data extents begin and end at block borders, which are page borders here. */
static int scan_extent(struct run *run, char *window, off_t from, off_t to)
{
        while (from < to) {
                size_t want = to - from < (off_t)WINDOW ? (size_t)(to - from) : WINDOW;
                ssize_t n = pread(run->fd, window, want, from);
                int r;

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -EIO;
                r = scan_window(run, window, (size_t)n, from);
                if (r < 0)
                        return r;
                from += n;
        }
        return punch(run);
}

int sparse_punch_zeros(int fd, uint64_t *ret_bytes, struct error *err)
{
        CLEANUP_FREE char *window = xmalloc(WINDOW);
        struct run run = {.fd = fd};
        off_t size = lseek(fd, 0, SEEK_END), at = 0;
        int r = size < 0 ? -errno : 0;

        while (r == 0 && at < size) {
                off_t data = lseek(fd, at, SEEK_DATA), hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);

                if (data < 0 && errno == ENXIO)
                        break;
                r = hole < 0 ? -errno : scan_extent(&run, window, data, hole);
                at = hole;
        }
        if (ret_bytes)
                *ret_bytes = run.punched;
        return r < 0 && r != -EOPNOTSUPP ? error_errno(err, r, "make holes of zero pages") : 0;
}
