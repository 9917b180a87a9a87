#include "journal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"

#define EPOCH_LEN 12

struct entry {
        struct entry *next;
        uint64_t number;
        size_t len;
        char text[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *oldest, **tail = &oldest;
static size_t bytes;
static uint64_t last;
static char epoch_now[EPOCH_LEN + 1];

static void drop_oldest(void)
{
        struct entry *e = oldest;

        oldest = e->next;
        if (!oldest)
                tail = &oldest;
        bytes -= e->len;
        free(e);
}

json_t *journal_text(const char *text)
{
        size_t len = strlen(text);
        CLEANUP_FREE char *clean = utf8_scrub(text, len < JOURNAL_TEXT_MAX ? len : JOURNAL_TEXT_MAX);
        CLEANUP_FREE char *cut = xasprintf("%s%s", clean, len > JOURNAL_TEXT_MAX ? "…" : "");

        return json_string(cut);
}

void journal_add(const char *level, const char *logger, const char *message, json_t *fields)
{
        CLEANUP_JSON json_t *j = json_pack("{s:I, s:s, s:s, s:s, s:o}", "time_ns", (json_int_t)clock_realtime_ns(), "level", level, "logger",
                                           logger, "message", message, "fields", fields);

        pthread_mutex_lock(&lock);
        json_object_set_new(j, "n", json_integer((json_int_t)++last));
        CLEANUP_FREE char *text = json_text(j);
        struct entry *e = xcalloc(1, sizeof(*e) + strlen(text) + 1);
        e->number = last;
        e->len = strlen(text);
        memcpy(e->text, text, e->len);
        *tail = e;
        tail = &e->next;
        bytes += e->len;
        while (bytes > JOURNAL_BYTES_MAX && oldest != e)
                drop_oldest();
        pthread_mutex_unlock(&lock);
}

void journal_reset(void)
{
        pthread_mutex_lock(&lock);
        while (oldest)
                drop_oldest();
        last = 0;
        epoch_now[0] = '\0';
        pthread_mutex_unlock(&lock);
}

void journal_read(const char *epoch, uint64_t after, size_t max, struct buf *out)
{
        size_t began;

        pthread_mutex_lock(&lock);
        /* Made when it is first asked for: a copy of this machine must not have it. */
        if (!*epoch_now)
                random_id(epoch_now, EPOCH_LEN);
        if (!streq(epoch, epoch_now))
                after = 0;
        buf_addf(out, "\"epoch\":\"%s\",\"entries\":[", epoch_now);
        began = out->len;
        for (const struct entry *e = oldest; e && out->len - began < max; e = e->next) {
                if (e->number <= after)
                        continue;
                if (out->len > began)
                        buf_addc(out, ',');
                buf_add(out, e->text, e->len);
        }
        buf_addc(out, ']');
        pthread_mutex_unlock(&lock);
}
