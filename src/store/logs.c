/* Build logs, as numbered chunks log/<build>/<number> with log-meta/<build> beside them.
 *
 * A chunk is a header and a JSON array of [time, level, step, message], compressed with zlib when that is large. The header
 * has, for each level, how many entries at or above it come before the chunk: a page at any offset of any filter is found by
 * halving over the chunks, not by reading the log from its start. The first entry's time does the same for cursors.
 *
 * A build keeps at most its team's max_log_mb of messages, as it was at the first line; one line says so where the rest is dropped. Lines without a
 * step are the build's own ("Build failed: …"); they still get in until RECORDS_LOG_RESERVE_BYTES more.
 */
#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/str.h"
#include "store/internal.h"

#define LEVELS 4
#define CHUNK_RAW_MAX (256 * 1024)  /* bytes of JSON in one chunk, about; escaping makes at most six of one */
#define MESSAGE_MAX (32 * 1024)     /* longer ones are split into several entries */
#define COMPRESS_FROM 1024          /* bytes of JSON; below, zlib gains nothing */
#define ENTRY_OVERHEAD 32           /* counted for each entry, so that empty lines are not free */
#define INFLATED_MAX (8 * 1024 * 1024)

struct chunk_header {
        uint8_t version; /* 1 */
        uint8_t compressed;
        uint16_t reserved;
        uint32_t before[LEVELS]; /* entries of this level or above in earlier chunks; little-endian, as all here */
        uint32_t count;
        uint32_t raw_len;
        int64_t first_ns;
} __attribute__((packed));

struct chunk {
        struct chunk_header header; /* in host order */
        struct store_value value;
};

static void chunk_free(struct chunk *c)
{
        store_value_free(&c->value);
}

void log_entries_free(struct log_entry *entries, size_t count)
{
        for (size_t i = 0; i < count; i++) {
                free(entries[i].step);
                free(entries[i].message);
        }
        free(entries);
}

struct log_meta {
        int64_t chunks, bytes, limit;
        int64_t before[LEVELS]; /* totals */
        int64_t last_ns;
        bool truncated;
};

static int meta_load(struct records *r, const char *build_id, struct log_meta *ret, int64_t *ret_revision, struct error *err)
{
        CLEANUP_JSON json_t *j = NULL;
        int x = records_find_json(r, &j, ret_revision, err, "log-meta/%s", build_id);

        if (x < 0)
                return x;
        *ret = (struct log_meta){
                .chunks = json_int(j, "chunks", 0),
                .bytes = json_int(j, "bytes", 0),
                .limit = json_int(j, "limit", RECORDS_LOG_MAX_BYTES),
                .last_ns = json_int(j, "last", 0),
                .truncated = json_bool(j, "truncated", false),
        };
        for (int i = 0; i < LEVELS; i++)
                ret->before[i] = json_integer_value(json_array_get(json_object_get(j, "counts"), (size_t)i));
        return 0;
}

static json_t *meta_json(const struct log_meta *m)
{
        return json_pack("{s:I, s:I, s:I, s:I, s:b, s:[I,I,I,I]}", "chunks", (json_int_t)m->chunks, "bytes", (json_int_t)m->bytes, "limit",
                         (json_int_t)m->limit, "last", (json_int_t)m->last_ns, "truncated", m->truncated, "counts", (json_int_t)m->before[0],
                         (json_int_t)m->before[1], (json_int_t)m->before[2], (json_int_t)m->before[3]);
}

/* Appending */

struct appender {
        struct log_meta meta;
        struct log_meta at_start; /* of the chunk being filled */
        json_t *entries;
        int64_t first_ns;
        size_t raw;
        struct store_txn *txn;
        const char *build_id;
};

static void chunk_close(struct appender *a)
{
        CLEANUP_FREE char *text = NULL;
        CLEANUP_BUF struct buf b = {};
        struct chunk_header h = { .version = 1 };
        CLEANUP_FREE char *key = xasprintf("log/%s/%08" PRIi64, a->build_id, a->meta.chunks);
        size_t len;

        if (json_array_size(a->entries) == 0)
                return;
        text = json_text(a->entries);
        len = strlen(text);
        h.count = htole32((uint32_t)json_array_size(a->entries));
        h.raw_len = htole32((uint32_t)len);
        h.first_ns = (int64_t)htole64((uint64_t)a->first_ns);
        h.compressed = len >= COMPRESS_FROM;
        for (int i = 0; i < LEVELS; i++)
                h.before[i] = htole32((uint32_t)a->at_start.before[i]);
        buf_add(&b, &h, sizeof(h));
        if (h.compressed) {
                uLongf out = compressBound(len);

                if (compress2((Bytef *)buf_reserve(&b, out), &out, (const Bytef *)text, len, Z_BEST_SPEED) != Z_OK)
                        abort();
                buf_grew(&b, out);
        } else {
                buf_add(&b, text, len);
        }
        store_txn_put(a->txn, key, b.data, b.len);
        a->meta.chunks++;
        a->at_start = a->meta;
        a->raw = 0;
        json_array_clear(a->entries);
}

static void add_entry(struct appender *a, int64_t time_ns, int level, const char *step, const char *message, size_t len)
{
        CLEANUP_FREE char *clean = utf8_scrub(message, len);

        if (json_array_size(a->entries) == 0)
                a->first_ns = time_ns;
        json_array_append_new(a->entries, json_pack("[I, i, s?, s]", (json_int_t)time_ns, level, step, clean));
        for (int i = 0; i <= level; i++)
                a->meta.before[i]++;
        a->meta.last_ns = time_ns;
        a->meta.bytes += (int64_t)len + ENTRY_OVERHEAD;
        a->raw += strlen(clean) + 64;
        if (a->raw >= CHUNK_RAW_MAX / 2)
                chunk_close(a);
}

static bool has_room(struct appender *a, const struct log_entry *e, int64_t time_ns)
{
        int64_t limit = a->meta.limit + (e->step ? 0 : RECORDS_LOG_RESERVE_BYTES);
        static const char notice[] = "[log limit reached: later output of this build is not kept]";

        if (a->meta.bytes + (int64_t)strlen(e->message) <= limit)
                return true;
        if (!a->meta.truncated) {
                a->meta.truncated = true;
                add_entry(a, time_ns, 2, NULL, notice, strlen(notice));
        }
        return false;
}

/* Where to cut a long message: not inside a UTF-8 sequence. */
static size_t piece_len(const char *s, size_t left)
{
        size_t n = MESSAGE_MAX;

        if (left <= MESSAGE_MAX)
                return left;
        while (n > MESSAGE_MAX - 4 && ((unsigned char)s[n] & 0xc0) == 0x80)
                n--;
        return n;
}

static void append_entry(struct appender *a, const struct log_entry *e)
{
        /* Times never go back within a log: pages by cursor rely on it. */
        int64_t time_ns = e->time_ns > a->meta.last_ns ? e->time_ns : a->meta.last_ns;
        int level = e->level < 0 ? 0 : e->level >= LEVELS ? LEVELS - 1 : e->level;
        const char *s = e->message;
        size_t left = strlen(s);

        if (!has_room(a, e, time_ns))
                return;
        do {
                size_t n = piece_len(s, left);

                add_entry(a, time_ns, level, e->step, s, n);
                s += n;
                left -= n;
        } while (left > 0);
}

/* A build whose record is gone, or that has none yet, gets the default. */
static int64_t team_limit(struct records *r, const char *build_id)
{
        struct build_record *b = NULL;
        struct template_record *t = NULL;
        struct team *team = NULL;
        int64_t limit = RECORDS_LOG_MAX_BYTES;

        if (records_build_get(r, build_id, &b, NULL) == 0 && records_template_get(r, b->template_id, &t, NULL) == 0 &&
            records_team_get(r, t->team_id, &team, NULL) == 0)
                limit = (int64_t)team->max_log_mb << 20;
        team_free(team);
        template_record_free(t);
        build_record_free(b);
        return limit;
}

/* Takes entries until a transaction is full; returns how many. */
static int append_once(struct records *r, const char *build_id, const struct log_entry *entries, size_t count, size_t *ret_taken,
                       struct error *err)
{
        CLEANUP_TXN struct store_txn *txn = store_txn_new();
        CLEANUP_JSON json_t *array = json_array();
        struct appender a = { .txn = txn, .build_id = build_id, .entries = array };
        int64_t revision, first_chunk;
        size_t i = 0;
        int x = meta_load(r, build_id, &a.meta, &revision, err);

        if (x < 0)
                return x;
        if (revision == 0)
                a.meta.limit = team_limit(r, build_id);
        a.at_start = a.meta;
        first_chunk = a.meta.chunks;
        /* One message is at most the limit, which may fill many chunks: stay far below a transaction's limit. */
        for (; i < count && a.meta.chunks - first_chunk < 8; i++)
                append_entry(&a, &entries[i]);
        chunk_close(&a);
        txn_expect(txn, revision, "log-meta/%s", build_id);
        txn_put_json(txn, meta_json(&a.meta), "log-meta/%s", build_id);
        x = records_commit(r, txn, err);
        *ret_taken = i;
        return x;
}

int records_log_append(struct records *r, const char *build_id, const struct log_entry *entries, size_t count, struct error *err)
{
        while (count > 0) {
                size_t taken = 0;
                int x = records_retry(r, err, append_once(r, build_id, entries, count, &taken, err));

                if (x < 0)
                        return x;
                entries += taken;
                count -= taken;
        }
        return 0;
}

/* Reading */

static int chunk_load(struct records *r, const char *build_id, int64_t number, struct chunk *ret, struct error *err)
{
        CLEANUP_FREE char *key = xasprintf("log/%s/%08" PRIi64, build_id, number);
        struct chunk c = {};
        int x = store_get(r->store, key, &c.value, err);

        if (x < 0)
                return x;
        if (c.value.len < sizeof(c.header) || c.value.data[0] != 1) {
                chunk_free(&c);
                return error_set(err, ERROR_INTERNAL, "store: log chunk '%s' is damaged", key);
        }
        memcpy(&c.header, c.value.data, sizeof(c.header));
        for (int i = 0; i < LEVELS; i++)
                c.header.before[i] = le32toh(c.header.before[i]);
        c.header.count = le32toh(c.header.count);
        c.header.raw_len = le32toh(c.header.raw_len);
        c.header.first_ns = (int64_t)le64toh((uint64_t)c.header.first_ns);
        *ret = c;
        return 0;
}

static int chunk_entries(const struct chunk *c, json_t **ret, struct error *err)
{
        const char *payload = c->value.data + sizeof(c->header);
        size_t len = c->value.len - sizeof(c->header);
        CLEANUP_FREE char *plain = NULL;
        uLongf out = c->header.raw_len;

        if (c->header.compressed) {
                if (out > INFLATED_MAX)
                        return error_set(err, ERROR_INTERNAL, "store: log chunk '%s' is damaged", c->value.key);
                plain = xmalloc(out + 1);
                if (uncompress((Bytef *)plain, &out, (const Bytef *)payload, len) != Z_OK)
                        return error_set(err, ERROR_INTERNAL, "store: log chunk '%s' is damaged", c->value.key);
                payload = plain;
                len = out;
        }
        return json_parse(payload, len, ret, err);
}

/* The last chunk that begins at or before the target: an offset of a level, or (level < 0) strictly before a time. */
static int find_chunk(struct records *r, const char *build_id, int64_t chunks, int level, int64_t target, int64_t *ret, struct error *err)
{
        int64_t low = 0, high = chunks - 1;

        while (low < high) {
                int64_t middle = low + (high - low + 1) / 2;
                CLEANUP(chunk_free) struct chunk c = {};
                int x = chunk_load(r, build_id, middle, &c, err);
                bool before;

                if (x < 0)
                        return x;
                before = level < 0 ? c.header.first_ns < target : (int64_t)c.header.before[level] <= target;
                if (before)
                        low = middle;
                else
                        high = middle - 1;
        }
        *ret = low;
        return 0;
}

struct reader {
        int min_level;
        size_t skip, limit;
        struct log_entry *entries;
        size_t count;
};

static void read_entry(struct reader *reader, const json_t *e)
{
        const json_t *step = json_array_get(e, 2);
        int level = (int)json_integer_value(json_array_get(e, 1));
        const char *message = json_string_value(json_array_get(e, 3));

        if (level < reader->min_level)
                return;
        if (reader->skip > 0) {
                reader->skip--;
                return;
        }
        reader->entries[reader->count++] = (struct log_entry){
                .time_ns = json_integer_value(json_array_get(e, 0)),
                .level = level,
                .step = xstrdup_or_null(json_string_value(step)),
                .message = xstrdup(message ? message : ""),
        };
}

static int read_chunk(struct records *r, const char *build_id, int64_t number, struct reader *reader, bool first, size_t offset,
                      struct error *err)
{
        CLEANUP(chunk_free) struct chunk c = {};
        CLEANUP_JSON json_t *entries = NULL;
        int x = chunk_load(r, build_id, number, &c, err);

        if (x == 0)
                x = chunk_entries(&c, &entries, err);
        if (x < 0)
                return x;
        if (first)
                reader->skip = offset - c.header.before[reader->min_level];
        for (size_t i = 0; i < json_array_size(entries) && reader->count < reader->limit; i++)
                read_entry(reader, json_array_get(entries, i));
        return 0;
}

int records_log_read(struct records *r, const char *build_id, int min_level, size_t offset, size_t limit,
                     struct log_entry **ret, size_t *ret_count, struct error *err)
{
        struct reader reader = { .min_level = min_level, .limit = limit };
        struct log_meta meta;
        int64_t first;
        int x = meta_load(r, build_id, &meta, NULL, err);

        *ret = NULL;
        *ret_count = 0;
        if (x < 0 || limit == 0 || (int64_t)offset >= meta.before[min_level])
                return x;
        x = find_chunk(r, build_id, meta.chunks, min_level, (int64_t)offset, &first, err);
        reader.entries = xcalloc(limit, sizeof(*reader.entries));
        for (int64_t n = first; x == 0 && n < meta.chunks && reader.count < limit; n++)
                x = read_chunk(r, build_id, n, &reader, n == first, offset, err);
        if (x < 0) {
                log_entries_free(reader.entries, reader.count);
                return x;
        }
        *ret = reader.entries;
        *ret_count = reader.count;
        return 0;
}

int records_log_seek(struct records *r, const char *build_id, int min_level, int64_t time_ns, size_t *ret_offset, struct error *err)
{
        CLEANUP(chunk_free) struct chunk c = {};
        CLEANUP_JSON json_t *entries = NULL;
        struct log_meta meta;
        int64_t number;
        size_t offset;
        int x = meta_load(r, build_id, &meta, NULL, err);

        if (x < 0 || meta.chunks == 0) {
                *ret_offset = 0;
                return x;
        }
        x = find_chunk(r, build_id, meta.chunks, -1, time_ns, &number, err);
        if (x == 0)
                x = chunk_load(r, build_id, number, &c, err);
        if (x == 0)
                x = chunk_entries(&c, &entries, err);
        if (x < 0)
                return x;
        offset = c.header.before[min_level];
        for (size_t i = 0; i < json_array_size(entries); i++) {
                const json_t *e = json_array_get(entries, i);

                if (json_integer_value(json_array_get(e, 0)) >= time_ns)
                        break;
                offset += json_integer_value(json_array_get(e, 1)) >= min_level;
        }
        *ret_offset = offset;
        return 0;
}

/* Expiry */

static int delete_row(void *data, const struct store_value *v, struct error *err)
{
        return store_delete(((struct records *)data)->store, v->key, err);
}

struct expiry {
        struct records *records;
        int64_t before_ns;
        int removed;
};

/* The chunks first: what is left after a crash is found again by its meta row. */
static int expire_log(void *data, const struct store_value *v, struct error *err)
{
        struct expiry *e = data;
        CLEANUP_FREE char *prefix = xasprintf("log/%s/", key_tail(v->key));
        CLEANUP_JSON json_t *meta = NULL;
        int x = json_parse(v->data, v->len, &meta, err);

        if (x < 0 || json_int(meta, "last", 0) >= e->before_ns)
                return x;
        x = records_scan(e->records, prefix, NULL, delete_row, e->records, err);
        if (x == 0)
                x = store_delete(e->records->store, v->key, err);
        e->removed++;
        return x;
}

int records_logs_expire(struct records *r, int64_t before_ns, struct error *err)
{
        struct expiry e = { .records = r, .before_ns = before_ns };
        int x = records_scan(r, "log-meta/", NULL, expire_log, &e, err);

        return x < 0 ? x : e.removed;
}
