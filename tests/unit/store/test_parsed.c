/* Parsed texts are shared while they are the same, and never taken for another. */
#include "temporary.h"

#include <pthread.h>

#include "base/json.h"
#include "store/parsed.h"

static void shares_what_is_the_same(void **state)
{
        struct parsed *p = parsed_new();
        struct error err;
        json_t *one, *again, *other;
        (void)state;
        assert_int_equal(parsed_get(p, "{\"a\": 1}", 8, &one, &err), 0);
        assert_int_equal(parsed_get(p, "{\"a\": 1} and more", 8, &again, &err), 0);
        assert_ptr_equal(one, again);
        assert_int_equal(parsed_get(p, "{\"a\": 2}", 8, &other, &err), 0);
        assert_int_equal(json_int(other, "a", 0), 2);
        assert_int_equal(parsed_get(p, "{\"a\": 2", 7, &again, &err), -EINVAL);
        parsed_free(p);
        assert_int_equal(json_int(one, "a", 0), 1); /* lives as long as it is used */
        json_decref(one);
        json_decref(one);
        json_decref(other);
        parsed_free(NULL);
}

/* More texts than slots, and some that are too long: each gets its own value, now and again. */
static void *many(void *data)
{
        struct parsed *p = data;
        char *text = xmalloc(PARSED_TEXT_MAX + 100);
        for (int i = 0; i < 4 * PARSED_SLOTS; i++) {
                int pad = i % 500 == 0 ? PARSED_TEXT_MAX : 1, len = snprintf(text, PARSED_TEXT_MAX + 100, "{\"n\": %d%*s}", i, pad, "");
                struct error err;
                json_t *j;
                assert_int_equal(parsed_get(p, text, (size_t)len, &j, &err), 0);
                assert_int_equal(json_int(j, "n", -1), i);
                json_decref(j);
        }
        free(text);
        return NULL;
}

static void never_mixes_them_up(void **state)
{
        struct parsed *p = parsed_new();
        pthread_t threads[4];
        (void)state;
        for (int i = 0; i < 4; i++)
                assert_int_equal(pthread_create(&threads[i], NULL, many, p), 0);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        parsed_free(p);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(shares_what_is_the_same), cmocka_unit_test(never_mixes_them_up) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
