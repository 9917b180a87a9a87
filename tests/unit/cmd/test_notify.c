/* systemd's datagram, received as systemd does. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/notify.h"

static void receive_on(const char *name)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        size_t len = strlen(name);
        char got[64] = {};
        memcpy(address.sun_path, name, len);
        if (name[0] == '@')
                address.sun_path[0] = '\0';
        int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + len), 0);
        setenv("NOTIFY_SOCKET", name, 1);
        assert_int_equal(service_notify("READY=1"), 0);
        assert_int_equal(recv(fd, got, sizeof got - 1, MSG_DONTWAIT), 7);
        assert_string_equal(got, "READY=1");
        close(fd);
}

static void test_sockets(void **state)
{
        (void)state;
        char name[64];
        snprintf(name, sizeof name, "@vmon-test-notify-%d", getpid());
        receive_on(name);
        snprintf(name, sizeof name, "/tmp/vmon-test-notify-%d", getpid());
        receive_on(name);
        unlink(name);
}

static void test_without_systemd(void **state)
{
        (void)state;
        unsetenv("NOTIFY_SOCKET");
        assert_int_equal(service_notify("READY=1"), 0);
        setenv("NOTIFY_SOCKET", "", 1);
        assert_int_equal(service_notify("READY=1"), 0);
}

static void test_bad_values(void **state)
{
        (void)state;
        char longest[200];
        memset(longest, '/', sizeof longest - 1);
        longest[sizeof longest - 1] = '\0';
        setenv("NOTIFY_SOCKET", longest, 1);
        assert_int_equal(service_notify("READY=1"), -EINVAL);
        setenv("NOTIFY_SOCKET", "relative", 1);
        assert_int_equal(service_notify("READY=1"), -EINVAL);
        setenv("NOTIFY_SOCKET", "/tmp/vmon-no-such-socket", 1);
        assert_true(service_notify("READY=1") < 0);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_sockets), cmocka_unit_test(test_without_systemd), cmocka_unit_test(test_bad_values) };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
