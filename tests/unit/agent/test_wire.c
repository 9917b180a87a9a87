/* The pure parts: base64, proto3 JSON, paths, modes, ranges, encodings, multipart, ends of processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/base64.h"
#include "agent/entry.h"
#include "agent/files.h"
#include "agent/multipart.h"
#include "agent/negotiate.h"
#include "agent/path.h"
#include "agent/process.h"
#include "agent/protojson.h"
#include "agent/state.h"
#include "base/json.h"

static void assert_decodes(const char *text, const char *wanted)
{
        struct buf b = {};

        assert_true(base64_decode(text, strlen(text), &b));
        assert_string_equal(buf_str(&b), wanted);
        buf_free(&b);
}

static void test_base64(void **state)
{
        struct buf b = {};

        (void)state;
        base64_add(&b, "hi\n", 3);
        base64_add(&b, "a", 1);
        base64_add(&b, "ab", 2);
        assert_string_equal(b.data, "aGkKYQ==YWI=");
        buf_clear(&b);
        assert_decodes("aGkK", "hi\n");
        assert_decodes("YQ==", "a");
        assert_decodes("YQ", "a");
        assert_decodes("_-8", "\xff\xef");
        assert_decodes("/+8=", "\xff\xef");
        assert_false(base64_decode("a", 1, &b));
        assert_false(base64_decode("a=b=", 4, &b));
        assert_false(base64_decode("!!!!", 4, &b));
        buf_free(&b);
}

static void test_protojson(void **state)
{
        const char *text = " {\"include_entry\":true,\"pid\":\"42\",\"other\":{\"a\":[1]},\"tag\":null,\"bad\":-1}\n";
        CLEANUP_JSON json_t *m = NULL;
        const char *tag = "none";
        uint32_t pid = 0;
        bool include = false;
        struct error err;

        (void)state;
        assert_int_equal(proto_parse(text, strlen(text), &m, &err), 0);
        assert_int_equal(proto_bool(m, "includeEntry", &include, &err), 1);
        assert_true(include);
        assert_int_equal(proto_uint32(m, "pid", &pid, &err), 1);
        assert_int_equal(pid, 42);
        assert_int_equal(proto_string(m, "tag", &tag, &err), 0);
        assert_true(proto_uint32(m, "bad", &pid, &err) < 0);
        assert_true(proto_parse("{bad", 4, &m, &err) < 0);
        assert_non_null(strstr(err.message, "unmarshal message"));
        assert_true(proto_parse("", 0, &m, &err) < 0);
}

static void assert_path(const char *given, const char *workdir, const char *wanted)
{
        char *path = NULL;
        struct error err;
        int r = path_resolve(given, "/home/user", workdir, &path, &err);

        if (!wanted) {
                assert_true(r < 0);
                return;
        }
        assert_int_equal(r, 0);
        assert_string_equal(path, wanted);
        free(path);
}

static void test_paths(void **state)
{
        (void)state;
        assert_path("", NULL, "/home/user");
        assert_path("", "/code", "/code");
        assert_path("", "sub", "/home/user/sub");
        assert_path("~", NULL, "/home/user");
        assert_path("~/a", "/code", "/home/user/a");
        assert_path("a/../b", "/code", "/home/user/b");
        assert_path("../../..", NULL, "/");
        assert_path("/a//b/../c", NULL, "/a//b/../c");
        assert_path("~bob", NULL, NULL);
}

static void test_modes(void **state)
{
        static const struct { mode_t mode; const char *text; } cases[] = {
                { S_IFREG | 0644, "-rw-r--r--" }, { S_IFDIR | 0755, "drwxr-xr-x" }, { S_IFLNK | 0777, "Lrwxrwxrwx" },
                { S_IFDIR | 01777, "dtrwxrwxrwx" }, { S_IFREG | 04755, "urwxr-xr-x" }, { S_IFCHR | 0666, "Dcrw-rw-rw-" },
                { S_IFBLK | 0660, "Drw-rw----" }, { S_IFIFO | 0644, "prw-r--r--" },
        };
        char text[ENTRY_MODE_MAX];

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
                entry_mode_text(cases[i].mode, text);
                assert_string_equal(text, cases[i].text);
        }
}

static void test_ranges_and_encodings(void **state)
{
        uint64_t start, length;

        (void)state;
        assert_int_equal(negotiate_range("bytes=0-4", 10, &start, &length), RANGE_PART);
        assert_int_equal(length, 5);
        assert_int_equal(negotiate_range("bytes=-3", 10, &start, &length), RANGE_PART);
        assert_int_equal(start, 7);
        assert_int_equal(negotiate_range("bytes=8-", 10, &start, &length), RANGE_PART);
        assert_int_equal(length, 2);
        assert_int_equal(negotiate_range("bytes=10-", 10, &start, &length), RANGE_UNSATISFIABLE);
        assert_int_equal(negotiate_range("bytes=0-1,3-4", 10, &start, &length), RANGE_ALL);
        assert_int_equal(negotiate_range("bytes=x", 10, &start, &length), RANGE_ALL);
        assert_int_equal(negotiate_encoding(NULL), ENCODING_IDENTITY);
        assert_int_equal(negotiate_encoding("gzip, deflate"), ENCODING_GZIP);
        assert_int_equal(negotiate_encoding("br"), ENCODING_IDENTITY);
        assert_int_equal(negotiate_encoding("identity;q=0"), ENCODING_NONE);
        assert_int_equal(negotiate_encoding("br, identity;q=0"), ENCODING_NONE);
        assert_int_equal(negotiate_encoding("*"), ENCODING_IDENTITY);
        assert_false(negotiate_identity("gzip;q=1,*;q=0"));
}

/* Item E234: stepped when more than 50 ms behind or 5 s ahead. */
static void test_clock_rule(void **state)
{
        const int64_t now = 1767225600LL * 1000000000, ms = 1000000;

        (void)state;
        assert_true(state_clock_is_off(now, now + 3600000 * ms));
        assert_true(state_clock_is_off(now, now - 3600000 * ms));
        assert_true(state_clock_is_off(now, now + 51 * ms));
        assert_true(state_clock_is_off(now, now - 5001 * ms));
        assert_false(state_clock_is_off(now, now));
        assert_false(state_clock_is_off(now, now + 50 * ms));
        assert_false(state_clock_is_off(now, now - 5000 * ms));
}

static void test_signatures(void **state)
{
        struct file_query q = { .path = (char *)"/home/user/a b.txt", .username = (char *)"user" };
        char *s;

        (void)state;
        s = file_signature(&q, "read", "secret-access-token");
        assert_string_equal(s, "v1_LPQJzXgZWQq6uTzfcTtzuqOiOL7Vx8+iqiI/5QnmqoU");
        free(s);
        q = (struct file_query){ .path = (char *)"/home/user/a b.txt", .username = (char *)"root",
                                 .expiration = (char *)"1767225600", .has_expiration = true };
        s = file_signature(&q, "write", "secret-access-token");
        assert_string_equal(s, "v1_YYg7J6syq1twLlJXXQak6SBoXX4vYrsFQfixazslwhQ");
        free(s);
}

struct seen {
        struct buf text;
};

static int on_part(const char *name, const char *filename, void *data)
{
        struct seen *s = data;

        buf_addf(&s->text, "[%s|%s:", name ? name : "", filename ? filename : "");
        return 0;
}

static int on_content(const void *bytes, size_t len, void *data)
{
        struct seen *s = data;

        buf_add(&s->text, bytes, len);
        return 0;
}

static int on_part_end(void *data)
{
        struct seen *s = data;

        buf_addc(&s->text, ']');
        return 0;
}

static void test_multipart(void **state)
{
        static const struct multipart_ops ops = { on_part, on_content, on_part_end };
        static const char body[] =
                "preamble\r\n--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/x/my \\\"y.txt\"\r\n"
                "Content-Type: text/plain\r\n\r\nhello\r\n--Xnot\r\n--X\r\n"
                "content-disposition: form-data; name=\"other\"; filename*=utf-8''%E6%96%87\r\n\r\n\r\n--X--\r\nepilogue";
        static const char wanted[] = "[file|/x/my \"y.txt:hello\r\n--Xnot][other|文:]";

        (void)state;
        for (size_t piece = 1; piece <= sizeof(body); piece++) {
                struct multipart m;
                struct seen seen = {};
                struct error err;
                int r = multipart_init(&m, "multipart/form-data; boundary=X", &ops, &seen, &err);

                for (size_t at = 0; at < sizeof(body) - 1 && r >= 0; at += piece)
                        r = multipart_feed(&m, body + at, at + piece < sizeof(body) - 1 ? piece : sizeof(body) - 1 - at, &err);
                if (r >= 0)
                        assert_int_equal(multipart_finish(&m, &err), 0);
                assert_int_equal(r, 0);
                assert_string_equal(buf_str(&seen.text), wanted);
                multipart_free(&m);
                buf_free(&seen.text);
        }
}

static void test_ends(void **state)
{
        struct process_end end;

        (void)state;
        process_describe(3 << 8, &end);
        assert_true(end.exited);
        assert_string_equal(end.status, "exit status 3");
        process_describe(9, &end);
        assert_int_equal(end.code, -1);
        assert_string_equal(end.status, "signal: killed");
        process_describe(11 | 0x80, &end);
        assert_string_equal(end.status, "signal: segmentation fault (core dumped)");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_base64), cmocka_unit_test(test_protojson), cmocka_unit_test(test_paths),
                cmocka_unit_test(test_modes), cmocka_unit_test(test_ranges_and_encodings),
                cmocka_unit_test(test_signatures), cmocka_unit_test(test_clock_rule), cmocka_unit_test(test_multipart), cmocka_unit_test(test_ends),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
