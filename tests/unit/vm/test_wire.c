/* Bytes from QEMU, the shim and the guest: lines, QMP messages, envelopes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/mem.h"
#include "vm/envelope.h"
#include "vm/fdpass.h"
#include "vm/qmp.h"

static void takes_lines_one_by_one(void **state)
{
        CLEANUP_BUF struct buf b = {};
        json_t *j;

        (void)state;
        buf_adds(&b, "{\"a\":1}\r\n{\"a\":2}\n{\"a\"");
        assert_int_equal(line_take(&b, &j), 1);
        assert_int_equal(json_int(j, "a", 0), 1);
        json_decref(j);
        assert_int_equal(line_take(&b, &j), 1);
        assert_int_equal(json_int(j, "a", 0), 2);
        json_decref(j);
        assert_int_equal(line_take(&b, &j), 0);
}

static void refuses_bad_lines(void **state)
{
        const char *const bad[] = {"\n", "x\n", "[1]\n", "\"s\"\n", "{\"a\":}\n", "{}{}\n", "\xff\xfe\n"};
        json_t *j = NULL;

        (void)state;
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
                CLEANUP_BUF struct buf b = {};

                buf_adds(&b, bad[i]);
                assert_int_equal(line_take(&b, &j), -EBADMSG);
        }
        assert_null(j);
}

static void bounds_a_line(void **state)
{
        CLEANUP_BUF struct buf b = {};
        CLEANUP_FREE char *big = xmalloc(LINE_MAX_BYTES + 2);
        json_t *j;

        (void)state;
        memset(big, 'x', LINE_MAX_BYTES + 1);
        buf_add(&b, big, LINE_MAX_BYTES);
        assert_int_equal(line_take(&b, &j), 0);
        buf_add(&b, big, 1);
        assert_int_equal(line_take(&b, &j), -EMSGSIZE);
}

static void carries_a_descriptor(void **state)
{
        CLEANUP_JSON json_t *m = json_pack("{s:s}", "op", "x"), *got = NULL;
        CLEANUP_BUF struct buf b = {};
        int pair[2], pipe_[2], fd = -1;
        char byte = 0;

        (void)state;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(pipe(pipe_), 0);
        assert_int_equal(line_send(pair[0], m, pipe_[1]), 0);
        close(pipe_[1]);
        assert_int_equal(line_receive(pair[1], &b, 1000, &got, &fd), 0);
        assert_true(fd >= 0);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
        assert_int_equal(write(fd, "y", 1), 1);
        assert_int_equal(read(pipe_[0], &byte, 1), 1);
        assert_int_equal(byte, 'y');
        close(fd);
        close(pipe_[0]);
        close(pair[0]);
        assert_int_equal(line_receive(pair[1], &b, 1000, &got, &fd), -EPIPE);
        close(pair[1]);
}

static void times_out(void **state)
{
        CLEANUP_BUF struct buf b = {};
        json_t *j;
        int pair[2];

        (void)state;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        assert_int_equal(line_receive(pair[0], &b, 5, &j, NULL), -ETIMEDOUT);
        close(pair[0]);
        close(pair[1]);
}

static struct qmp_message classify(const char *text, json_t **hold)
{
        struct qmp_message m;

        assert_int_equal(json_parse(text, strlen(text), hold, NULL), 0);
        qmp_classify(*hold, &m);
        return m;
}

static void tells_qmp_messages_apart(void **state)
{
        static const struct {
                const char *text;
                enum qmp_kind kind;
                json_int_t id;
        } all[] = {{"{\"QMP\":{\"version\":{}}}", QMP_GREETING, -1},
                   {"{\"return\":{},\"id\":7}", QMP_RETURN, 7},
                   {"{\"error\":{\"class\":\"GenericError\",\"desc\":\"no\"},\"id\":8}", QMP_ERROR, 8},
                   {"{\"event\":\"STOP\",\"timestamp\":{}}", QMP_EVENT, -1},
                   {"{\"event\":5}", QMP_UNKNOWN, -1},
                   {"{}", QMP_UNKNOWN, -1}};

        (void)state;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
                CLEANUP_JSON json_t *hold = NULL;
                struct qmp_message m = classify(all[i].text, &hold);

                assert_int_equal(m.kind, all[i].kind);
                assert_int_equal(m.id, all[i].id);
        }
}

static void matches_events_by_name_and_status(void **state)
{
        CLEANUP_JSON json_t *hold = NULL, *any = json_pack("{s:s}", "event", "MIGRATION");
        CLEANUP_JSON json_t *ends = json_pack("{s:s, s:[s, s]}", "event", "MIGRATION", "status", "completed", "failed");
        CLEANUP_JSON json_t *other = json_pack("{s:s}", "event", "RESUME"), *hold2 = NULL;
        struct qmp_message active = classify("{\"event\":\"MIGRATION\",\"data\":{\"status\":\"active\"}}", &hold);
        struct qmp_message failed = classify("{\"event\":\"MIGRATION\",\"data\":{\"status\":\"failed\"}}", &hold2);

        (void)state;
        assert_true(qmp_event_matches(&active, any));
        assert_false(qmp_event_matches(&active, ends));
        assert_true(qmp_event_matches(&failed, ends));
        assert_false(qmp_event_matches(&active, other));
}

static void formats_a_command(void **state)
{
        CLEANUP_BUF struct buf b = {};
        CLEANUP_JSON json_t *a = json_pack("{s:s}", "uri", "fd:state"), *j = NULL;

        (void)state;
        qmp_format(&b, "migrate", a, 3);
        assert_int_equal(line_take(&b, &j), 1);
        assert_string_equal(json_str(j, "execute"), "migrate");
        assert_int_equal(json_int(j, "id", 0), 3);
        assert_string_equal(json_str(json_object_get(j, "arguments"), "uri"), "fd:state");
}

static void takes_envelopes_at_any_split(void **state)
{
        CLEANUP_BUF struct buf whole = {}, part = {};
        CLEANUP_JSON json_t *one = json_pack("{s:i}", "n", 1), *two = json_object();
        size_t taken = 0;
        json_t *got;
        bool end;

        (void)state;
        envelope_format(&whole, 0, one);
        envelope_format(&whole, 2, two);
        for (size_t i = 0; i < whole.len; i++) {
                buf_add(&part, whole.data + i, 1);
                while (envelope_take(&part, &got, &end) == 1) {
                        assert_int_equal(end, taken == 1);
                        assert_int_equal(json_object_size(got), taken == 0);
                        json_decref(got);
                        taken++;
                }
        }
        assert_int_equal(taken, 2);
        assert_int_equal(part.len, 0);
}

static void refuses_bad_envelopes(void **state)
{
        static const struct {
                const char *bytes;
                size_t len;
                int result;
        } all[] = {{"\0\x7f\xff\xff\xff", 5, -EMSGSIZE}, {"\1\0\0\0\2{}", 7, -EPROTO}, {"\x80\0\0\0\2{}", 7, -EPROTO},
                   {"\0\0\0\0\2[]", 7, -EBADMSG}, {"\0\0\0\0\0", 5, -EBADMSG}, {"\0\0\0\0\2{x", 7, -EBADMSG},
                   {"\0\0\0\0\3{}", 7, 0}, {"\0\0\0\0", 4, 0}};
        json_t *got;
        bool end;

        (void)state;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
                CLEANUP_BUF struct buf b = {};

                buf_add(&b, all[i].bytes, all[i].len);
                assert_int_equal(envelope_take(&b, &got, &end), all[i].result);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(takes_lines_one_by_one),
                cmocka_unit_test(refuses_bad_lines),
                cmocka_unit_test(bounds_a_line),
                cmocka_unit_test(carries_a_descriptor),
                cmocka_unit_test(times_out),
                cmocka_unit_test(tells_qmp_messages_apart),
                cmocka_unit_test(matches_events_by_name_and_status),
                cmocka_unit_test(formats_a_command),
                cmocka_unit_test(takes_envelopes_at_any_split),
                cmocka_unit_test(refuses_bad_envelopes),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
