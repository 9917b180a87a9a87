/* Derivation, MACs and sealing against published vectors and altered texts. */
#include "temporary.h"

#include <sys/stat.h>

#include "base/str.h"
#include "store/secret.h"

/* RFC 4231, test case 2 with the key padded (HMAC pads with zeros anyway); FIPS 180 "abc". */
static void vectors(void **state)
{
        unsigned char key[SECRET_LEN] = "Jefe";
        char hex[MAC_HEX_LEN + 1];

        (void)state;
        secret_mac(key, "what do ya want for nothing?", 28, hex);
        assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        secret_digest("abc", 3, hex);
        assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void labels_differ(void **state)
{
        unsigned char root[SECRET_LEN] = { 1 }, a[SECRET_LEN], b[SECRET_LEN], again[SECRET_LEN];

        (void)state;
        secret_derive(root, "a", a);
        secret_derive(root, "b", b);
        secret_derive(root, "a", again);
        assert_memory_not_equal(a, b, SECRET_LEN);
        assert_memory_not_equal(a, root, SECRET_LEN);
        assert_memory_equal(a, again, SECRET_LEN);
}

static void seals(void **state)
{
        unsigned char key[SECRET_LEN] = { 7 }, other[SECRET_LEN] = { 8 };
        char *sealed, *plain;
        struct error err;
        size_t len;

        (void)state;
        for (size_t n = 0; n < 40; n++) {
                char text[41];

                memset(text, 'x', n);
                sealed = secret_seal(key, "here", text, n);
                /* Long enough that the random nonce does not spell it by chance. */
                assert_null(strstr(sealed, "xxxxxxxx"));
                assert_int_equal(secret_open(key, "here", sealed, &plain, &len, &err), 0);
                assert_int_equal(len, n);
                assert_memory_equal(plain, text, n);
                free(plain);
                assert_true(secret_open(key, "there", sealed, &plain, &len, &err) < 0);
                assert_true(secret_open(other, "here", sealed, &plain, &len, &err) < 0);
                free(sealed);
        }
}

static void notices_changes(void **state)
{
        unsigned char key[SECRET_LEN] = { 7 };
        char *sealed = secret_seal(key, "c", "secret text", 11), *plain;
        const char *const junk[] = { "", "A", "====", "AAAA", "not base64 at all!" };
        struct error err;
        size_t len;

        (void)state;
        for (size_t i = 0; sealed[i] && sealed[i] != '='; i++) {
                char was = sealed[i];

                sealed[i] = was == 'A' ? 'B' : 'A';
                /* The last digit before padding has unused bits. */
                if (sealed[i + 1] != '=' && sealed[i + 1] != '\0')
                        assert_true(secret_open(key, "c", sealed, &plain, &len, &err) < 0);
                sealed[i] = was;
        }
        free(sealed);
        for (size_t i = 0; i < 5; i++)
                assert_true(secret_open(key, "c", junk[i], &plain, &len, &err) < 0);
}

static void loads(void **state)
{
        struct temporary *t = *state;
        char *path = path_join(t->dir, "root-secret");
        unsigned char a[SECRET_LEN], b[SECRET_LEN];
        struct error err;
        struct stat st;

        assert_int_equal(secret_load(path, a, &err), 0);
        assert_int_equal(secret_load(path, b, &err), 0);
        assert_memory_equal(a, b, SECRET_LEN);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(file_write_atomic(path, "short", 5, 0600, &err), 0);
        assert_int_equal(secret_load(path, b, &err), -EINVAL);
        assert_int_equal(file_write_atomic(path, "0123456789012345678901234567890123", 33, 0600, &err), 0);
        assert_int_equal(secret_load(path, b, &err), -EINVAL);
        free(path);
}

/* Environments must not be found in the database file, and come back. */
static void records_are_sealed(void **state)
{
        struct temporary *t = *state;
        unsigned char root[SECRET_LEN] = { 3 };
        struct team *team = temporary_team(t, "acme", false);
        struct build_record result = { .env = json_pack("{s:s}", "TOKEN", "hunter2hunter2") }, *b;
        struct store_value *values;
        struct registered g = {};
        struct error err;
        size_t count;

        records_set_secret(t->records, root);
        assert_int_equal(temporary_register(t, team, "web", "default", &g, &err), 0);
        result.id = g.build->id;
        assert_int_equal(records_build_start(t->records, g.build->id, &err), 0);
        assert_int_equal(records_build_ready(t->records, &result, &err), 0);
        assert_int_equal(records_sandbox_put(t->records, "sbx", result.env, &err), 0);
        assert_int_equal(store_range(t->store, "", NULL, 1000, &values, &count, &err), 0);
        assert_true(count > 4);
        for (size_t i = 0; i < count; i++)
                assert_null(memmem(values[i].data, values[i].len, "hunter2", 7));
        store_values_free(values, count);
        temporary_reopen(t);
        assert_true(records_build_get(t->records, g.build->id, &b, &err) < 0);
        records_set_secret(t->records, root);
        assert_int_equal(records_build_get(t->records, g.build->id, &b, &err), 0);
        assert_string_equal(json_string_value(json_object_get(b->env, "TOKEN")), "hunter2hunter2");
        build_record_free(b);
        json_decref(result.env);
        registered_free(&g);
        team_free(team);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, temporary_setup, temporary_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(vectors), TEST(labels_differ), TEST(seals), TEST(notices_changes), TEST(loads), TEST(records_are_sealed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
