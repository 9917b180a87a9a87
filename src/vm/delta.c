#include "vm/delta.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#define COPY_BYTES (1u << 20)
#define PAGEMAP_ENTRIES (1u << 16) /* read at once */
#define PAGEMAP_PRESENT (1ull << 63)
#define PAGEMAP_SWAPPED (1ull << 62)
#define PAGEMAP_FILE (1ull << 61)  /* the page is the file's, not a copy */
#define RUN_PAGES_MAX UINT32_MAX

_Static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "the file holds the structures as they lie in memory");
_Static_assert(sizeof(struct memory_delta_run) == 16, "the format");

/* A process whose guest memory starts at `base`. */
struct target {
        int mem, pagemap;
        uint64_t base;
};

static void target_close(struct target *t)
{
        if (t->mem >= 0)
                close(t->mem);
        if (t->pagemap >= 0)
                close(t->pagemap);
}

struct mapping {
        uint64_t start, end, offset, inode;
        char device[16];
};

/* A line of /proc/PID/maps; only private mappings of files. */
static bool parse_mapping(const char *line, struct mapping *ret)
{
        char mode[5];

        return sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %15s %" SCNu64, &ret->start, &ret->end, mode, &ret->offset, ret->device,
                      &ret->inode) == 6 && mode[3] == 'p' && ret->inode != 0;
}

/* Advice on a part of a mapping splits it: the pieces follow each other in memory and in the file. */
static bool continues(const struct mapping *before, const struct mapping *m)
{
        return before->end == m->start && before->inode == m->inode && streq(before->device, m->device) &&
               m->offset == before->offset + (before->end - before->start);
}

static int find_memory(pid_t pid, uint64_t memory, uint64_t *ret_base, struct error *err)
{
        CLEANUP_FREE char *path = xasprintf("/proc/%d/maps", (int)pid);
        struct mapping joined = {}, m;
        FILE *f = fopen(path, "re");
        char *line = NULL;
        size_t size = 0;
        int r = -ENOENT;

        if (!f)
                return error_errno(err, errno, "read %s", path);
        while (r < 0 && getline(&line, &size, f) > 0) {
                if (!parse_mapping(line, &m))
                        continue;
                if (joined.end && continues(&joined, &m))
                        joined.end = m.end;
                else
                        joined = m;
                if (joined.offset == 0 && joined.end - joined.start == memory)
                        r = 0;
        }
        free(line);
        fclose(f);
        if (r < 0)
                return error_set(err, ERROR_INTERNAL, "process %d maps no guest memory of %" PRIu64 " bytes", (int)pid, memory);
        *ret_base = joined.start;
        return 0;
}

static int target_open(pid_t pid, uint64_t memory, int mode, struct target *ret, struct error *err)
{
        CLEANUP_FREE char *mem = xasprintf("/proc/%d/mem", (int)pid), *pagemap = xasprintf("/proc/%d/pagemap", (int)pid);
        struct target t = {-1, -1, 0};
        int r = find_memory(pid, memory, &t.base, err);

        if (r < 0)
                return r;
        t.mem = open(mem, mode | O_CLOEXEC);
        t.pagemap = open(pagemap, O_RDONLY | O_CLOEXEC);
        if (t.mem < 0 || t.pagemap < 0) {
                r = errno == EACCES || errno == EPERM ?
                            error_set(err, ERROR_UNAVAILABLE, "this process may not reach the memory of its virtual machine (pid %d): "
                                      "run vmon as root, or set kernel.yama.ptrace_scope to 0", (int)pid) :
                            error_errno(err, errno, "open the memory of process %d", (int)pid);
                target_close(&t);
                return r;
        }
        *ret = t;
        return 0;
}

/* Saving */

struct writer {
        struct target from;
        int fd;
        size_t page;
        uint64_t pages; /* changed ones, zero or not */
        struct memory_delta_header header;
        struct memory_delta_run *runs;
        size_t capacity;
        char *buffer; /* COPY_BYTES */
};

static void add_run(struct writer *w, uint64_t first, bool zero)
{
        struct memory_delta_run *last = w->header.runs ? &w->runs[w->header.runs - 1] : NULL;

        w->pages++;
        if (last && last->zero == (uint32_t)zero && last->first + last->count == first && last->count < RUN_PAGES_MAX) {
                last->count++;
                return;
        }
        if (w->header.runs == w->capacity) {
                w->capacity = w->capacity ? 2 * w->capacity : 256;
                w->runs = xreallocarray(w->runs, w->capacity, sizeof(*w->runs));
        }
        w->runs[w->header.runs++] = (struct memory_delta_run){first, 1, zero};
}

static int write_data(struct writer *w, const char *data, size_t len, struct error *err)
{
        int r = fd_write_all(w->fd, data, len);

        if (r < 0)
                return error_errno(err, r, "write the changed memory");
        w->header.pages += len / w->page;
        return 0;
}

static bool is_zero(const char *data, size_t len)
{
        return data[0] == 0 && memcmp(data, data + 1, len - 1) == 0;
}

/* At most a buffer of adjacent changed pages: the stretches that are not zero go to the file in one write each. */
static int copy_pages(struct writer *w, uint64_t first, size_t count, struct error *err)
{
        size_t len = count * w->page, from = 0;
        ssize_t n = pread(w->from.mem, w->buffer, len, (off_t)(w->from.base + first * w->page));
        int r = 0;

        if (n != (ssize_t)len)
                return error_errno(err, n < 0 ? errno : EIO, "read the memory of the virtual machine");
        for (size_t i = 0; i < count && r == 0; i++) {
                bool zero = is_zero(w->buffer + i * w->page, w->page);

                add_run(w, first + i, zero);
                if (!zero)
                        continue;
                if (i > from)
                        r = write_data(w, w->buffer + from * w->page, (i - from) * w->page, err);
                from = i + 1;
        }
        return r == 0 && count > from ? write_data(w, w->buffer + from * w->page, (count - from) * w->page, err) : r;
}

static bool changed(uint64_t entry)
{
        return (entry & (PAGEMAP_PRESENT | PAGEMAP_SWAPPED)) && !(entry & PAGEMAP_FILE);
}

static int copy_changed(struct writer *w, const uint64_t *entries, size_t count, uint64_t first, struct error *err)
{
        size_t most = COPY_BYTES / w->page;

        for (size_t i = 0; i < count;) {
                size_t n = 0;
                int r;

                while (i + n < count && n < most && changed(entries[i + n]))
                        n++;
                if (n == 0) {
                        i++;
                        continue;
                }
                r = copy_pages(w, first + i, n, err);
                if (r < 0)
                        return r;
                i += n;
        }
        return 0;
}

static int copy_memory(struct writer *w, struct error *err)
{
        uint64_t total = w->header.memory / w->page, start = w->from.base / w->page;
        CLEANUP_FREE uint64_t *entries = xmalloc(PAGEMAP_ENTRIES * sizeof(*entries));

        for (uint64_t at = 0; at < total;) {
                size_t want = total - at < PAGEMAP_ENTRIES ? (size_t)(total - at) : PAGEMAP_ENTRIES;
                ssize_t n = pread(w->from.pagemap, entries, want * sizeof(*entries), (off_t)((start + at) * sizeof(*entries)));
                int r;

                if (n <= 0)
                        return error_errno(err, n < 0 ? errno : EIO, "read which pages of the virtual machine have changed");
                r = copy_changed(w, entries, (size_t)n / sizeof(*entries), at, err);
                if (r < 0)
                        return r;
                at += (size_t)n / sizeof(*entries);
        }
        return 0;
}

/* The table after the pages, then the header over the place that was left for it. */
static int finish(struct writer *w, struct error *err)
{
        int r;

        w->header.table = (1 + w->header.pages) * w->page;
        r = w->header.runs ? fd_write_all(w->fd, w->runs, w->header.runs * sizeof(*w->runs)) : 0;
        if (r == 0 && pwrite(w->fd, &w->header, sizeof(w->header), 0) != sizeof(w->header))
                r = -EIO;
        if (r == 0 && ftruncate(w->fd, (off_t)(w->header.table + w->header.runs * sizeof(*w->runs))) < 0) /* when nothing follows */
                r = -errno;
        return r < 0 ? error_errno(err, r, "write the changed memory") : 0;
}

int memory_delta_save(pid_t pid, uint64_t memory, int fd, uint64_t *ret_pages, struct error *err)
{
        struct writer w = {.fd = fd, .page = (size_t)sysconf(_SC_PAGESIZE)};
        int r = target_open(pid, memory, O_RDONLY, &w.from, err);

        if (r < 0)
                return r;
        w.header = (struct memory_delta_header){.magic = MEMORY_DELTA_MAGIC, .page_size = w.page, .memory = memory};
        w.buffer = xmalloc(COPY_BYTES);
        if (lseek(fd, (off_t)w.page, SEEK_SET) < 0)
                r = error_errno(err, errno, "write the changed memory");
        if (r == 0)
                r = copy_memory(&w, err);
        if (r == 0)
                r = finish(&w, err);
        if (ret_pages)
                *ret_pages = w.pages;
        explicit_bzero(w.buffer, COPY_BYTES);
        free(w.buffer);
        free(w.runs);
        target_close(&w.from);
        return r;
}

/* Loading */

static int damaged(struct error *err, const char *what)
{
        return error_set(err, ERROR_INVALID, "the saved memory is damaged (%s)", what);
}

static int check_header(const struct memory_delta_header *h, uint64_t memory, uint64_t file_size, struct error *err)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), total = memory / page;

        if (h->magic != MEMORY_DELTA_MAGIC)
                return damaged(err, "it is no such file");
        if (h->page_size != page || h->memory != memory)
                return damaged(err, "it is for another size of memory or page");
        if (h->pages > total || h->runs > total || h->table != (1 + h->pages) * page)
                return damaged(err, "its header");
        if (file_size != h->table + h->runs * sizeof(struct memory_delta_run))
                return damaged(err, "it is cut or longer than its header says");
        return 0;
}

static int check_runs(const struct memory_delta_header *h, const struct memory_delta_run *runs, struct error *err)
{
        uint64_t total = h->memory / h->page_size, next = 0, pages = 0;

        for (uint64_t i = 0; i < h->runs; i++) {
                const struct memory_delta_run *r = &runs[i];

                if (r->count == 0 || r->zero > 1 || r->first < next || r->first >= total || r->count > total - r->first)
                        return damaged(err, "its table");
                next = r->first + r->count;
                pages += r->zero ? 0 : r->count;
        }
        return pages == h->pages ? 0 : damaged(err, "its table");
}

int memory_delta_read_table(int fd, uint64_t memory, struct memory_delta_header *ret, struct memory_delta_run **ret_runs,
                            struct error *err)
{
        CLEANUP_FREE struct memory_delta_run *runs = NULL;
        struct memory_delta_header h;
        struct stat st;
        size_t len;
        int r;

        if (fstat(fd, &st) < 0)
                return error_errno(err, errno, "read the saved memory");
        if (pread(fd, &h, sizeof(h), 0) != sizeof(h))
                return damaged(err, "it is cut");
        r = check_header(&h, memory, (uint64_t)st.st_size, err);
        if (r < 0)
                return r;
        len = h.runs * sizeof(*runs);
        runs = xmalloc(len + 1);
        if (pread(fd, runs, len, (off_t)h.table) != (ssize_t)len)
                return damaged(err, "it is cut");
        r = check_runs(&h, runs, err);
        if (r < 0)
                return r;
        *ret = h;
        *ret_runs = STEAL(runs);
        return 0;
}

static int put(const struct target *to, uint64_t at, const char *data, size_t len, struct error *err)
{
        if (pwrite(to->mem, data, len, (off_t)(to->base + at)) != (ssize_t)len)
                return error_errno(err, errno, "write the memory of the virtual machine");
        return 0;
}

/* One run, from offset *from of the file on. */
static int load_run(const struct target *to, int fd, const struct memory_delta_run *run, uint64_t page, char *buffer, off_t *from,
                    struct error *err)
{
        uint64_t at = run->first * page, left = run->count * page;

        if (run->zero)
                memset(buffer, 0, left < COPY_BYTES ? (size_t)left : COPY_BYTES);
        while (left) {
                size_t n = left < COPY_BYTES ? (size_t)left : COPY_BYTES;
                int r;

                if (!run->zero && pread(fd, buffer, n, *from) != (ssize_t)n)
                        return damaged(err, "it cannot be read");
                r = put(to, at, buffer, n, err);
                if (r < 0)
                        return r;
                *from += run->zero ? 0 : (off_t)n;
                at += n;
                left -= n;
        }
        return 0;
}

static int load_runs(const struct target *to, int fd, const struct memory_delta_header *h, const struct memory_delta_run *runs,
                     struct error *err)
{
        CLEANUP_FREE char *buffer = xmalloc(COPY_BYTES);
        off_t from = (off_t)h->page_size;
        int r = 0;

        for (uint64_t i = 0; i < h->runs && r == 0; i++)
                r = load_run(to, fd, &runs[i], h->page_size, buffer, &from, err);
        return r;
}

int memory_delta_load(int fd, uint64_t memory, pid_t pid, struct error *err)
{
        CLEANUP_FREE struct memory_delta_run *runs = NULL;
        struct memory_delta_header h;
        struct target to = {-1, -1, 0};
        int r = memory_delta_read_table(fd, memory, &h, &runs, err);

        if (r == 0)
                r = target_open(pid, memory, O_RDWR, &to, err);
        if (r < 0)
                return r;
        r = load_runs(&to, fd, &h, runs, err);
        target_close(&to);
        return r;
}

int memory_delta_apply(int fd, uint64_t memory, int to, struct error *err)
{
        CLEANUP_FREE struct memory_delta_run *runs = NULL;
        struct memory_delta_header h;
        int r = memory_delta_read_table(fd, memory, &h, &runs, err);

        return r < 0 ? r : load_runs(&(struct target){to, -1, 0}, fd, &h, runs, err);
}
