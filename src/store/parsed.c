/* jansson counts references atomically. (ThreadSanitizer says otherwise: the library is not built with it, and json_decref() looks plainly
 * whether a value is one of jansson's constants.)
 */
#include "store/parsed.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

#define LOCKS 16

struct slot {
        char *text;
        size_t len;
        json_t *json;
};

struct parsed {
        pthread_mutex_t locks[LOCKS]; /* of the slots with this remainder */
        struct slot slots[PARSED_SLOTS];
};

struct parsed *parsed_new(void)
{
        struct parsed *p = xcalloc(1, sizeof(*p));

        for (size_t i = 0; i < LOCKS; i++)
                pthread_mutex_init(&p->locks[i], NULL);
        return p;
}

static void clear(struct slot *s)
{
        free(s->text);
        json_decref(s->json);
        *s = (struct slot){};
}

void parsed_free(struct parsed *p)
{
        if (!p)
                return;
        for (size_t i = 0; i < PARSED_SLOTS; i++)
                clear(&p->slots[i]);
        for (size_t i = 0; i < LOCKS; i++)
                pthread_mutex_destroy(&p->locks[i]);
        free(p);
}

/* FNV-1a by words: who finds two texts for one slot gains nothing but a slow request. */
static uint64_t hash(const char *text, size_t len)
{
        uint64_t h = 14695981039346656037ULL ^ len;

        for (; len >= sizeof(h); text += sizeof(h), len -= sizeof(h)) {
                uint64_t word;

                memcpy(&word, text, sizeof(word));
                h = (h ^ word) * 1099511628211ULL;
                h ^= h >> 32;
        }
        while (len-- > 0)
                h = (h ^ (unsigned char)*text++) * 1099511628211ULL;
        return h ^ h >> 29;
}

int parsed_get(struct parsed *p, const char *text, size_t len, json_t **ret, struct error *err)
{
        size_t at = hash(text, len) % PARSED_SLOTS;
        struct slot *s = &p->slots[at], old = {};
        pthread_mutex_t *lock = &p->locks[at % LOCKS];
        json_t *found = NULL;
        int r;

        if (len > PARSED_TEXT_MAX)
                return json_parse(text, len, ret, err);
        pthread_mutex_lock(lock);
        if (s->json && s->len == len && memcmp(s->text, text, len) == 0)
                found = json_incref(s->json);
        pthread_mutex_unlock(lock);
        if (found) {
                *ret = found;
                return 0;
        }
        r = json_parse(text, len, ret, err);
        if (r < 0)
                return r;
        pthread_mutex_lock(lock);
        old = *s;
        *s = (struct slot){ .text = xmemdup(text, len), .len = len, .json = json_incref(*ret) };
        pthread_mutex_unlock(lock);
        clear(&old);
        return 0;
}
