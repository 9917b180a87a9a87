/* The command line of `vmon serve`: defaults, environment, refusals. Wrong usage ends the program inside argp, so it is tried
 * in children.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "cmd/options.h"
#include "vm/vm.h"

static char *arguments[8];

static int arrange(const char *first, const char *second)
{
        int n = 0;
        arguments[n++] = "serve";
        if (first)
                arguments[n++] = (char *)first;
        if (second)
                arguments[n++] = (char *)second;
        arguments[n] = NULL;
        return n;
}

static struct serve_options parse(const char *first, const char *second)
{
        struct serve_options o;
        int n = arrange(first, second);
        assert_int_equal(serve_options_parse(n, arguments, &o), 0);
        return o;
}

/* Exit status of a parse in a child. */
static int status_of(const char *argument)
{
        int status, n = arrange(argument, NULL);
        pid_t pid = fork();
        if (pid == 0) {
                struct serve_options o;
                if (!freopen("/dev/null", "w", stderr))
                        _exit(99);
                _exit(serve_options_parse(n, arguments, &o));
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        return WEXITSTATUS(status);
}

static void test_defaults(void **state)
{
        (void)state;
        struct serve_options o = parse("--data-dir", "/tmp/vmon-test-data");
        assert_string_equal(o.listen.host, "127.0.0.1");
        assert_int_equal(o.listen.port, 3000);
        assert_int_equal(o.cluster_listen.port, 7947);
        assert_string_equal(o.kit_dir, "/tmp/vmon-test-data/kit");
        assert_string_equal(o.store_url, "sqlite:/tmp/vmon-test-data/vmon.db");
        assert_string_equal(o.cluster_token_file, "/tmp/vmon-test-data/cluster-token");
        assert_int_equal(o.max_builds, 2);
        assert_int_equal(o.build_seconds, 3600);
        assert_int_equal(o.ready_seconds, 600);
        assert_string_equal(o.hypervisor, "auto");
        assert_null(o.public_url);
        assert_null(o.insecure_registries[0]);
        assert_true(o.step_cache_bytes > 0);
        assert_true(strlen(o.node_name) > 0);
        serve_options_free(&o);
}

static void test_environment(void **state)
{
        (void)state;
        setenv("VMON_MAX_BUILDS", "5", 1);
        setenv("VMON_INSECURE_REGISTRY", "127.0.0.1:5000,registry.local", 1);
        setenv("VMON_NETWORK", "user", 1);
        struct serve_options o = parse(NULL, NULL);
        assert_int_equal(o.max_builds, 5);
        assert_int_equal(o.network, VM_NETWORK_USER);
        assert_string_equal(o.insecure_registries[0], "127.0.0.1:5000");
        assert_string_equal(o.insecure_registries[1], "registry.local");
        assert_null(o.insecure_registries[2]);
        serve_options_free(&o);
        o = parse("--max-builds=7", NULL); /* the command line wins */
        assert_int_equal(o.max_builds, 7);
        serve_options_free(&o);
        o = parse("--build-seconds=90", "--ready-seconds=9");
        assert_int_equal(o.build_seconds, 90);
        assert_int_equal(o.ready_seconds, 9);
        serve_options_free(&o);
        unsetenv("VMON_MAX_BUILDS");
        unsetenv("VMON_INSECURE_REGISTRY");
        unsetenv("VMON_NETWORK");
}

static void test_repeated_and_relative(void **state)
{
        (void)state;
        struct serve_options o = parse("--insecure-registry=a:1", "--insecure-registry=b");
        assert_string_equal(o.insecure_registries[0], "a:1");
        assert_string_equal(o.insecure_registries[1], "b");
        serve_options_free(&o);
        o = parse("--data-dir=relative", NULL);
        assert_int_equal(o.data_dir[0], '/');
        assert_int_equal(o.kit_dir[0], '/');
        serve_options_free(&o);
        o = parse("--step-cache-mb=3", "--listen=[::1]:0");
        assert_true(o.step_cache_bytes == 3 << 20);
        assert_string_equal(o.listen.host, "::1");
        assert_int_equal(o.listen.port, 0);
        serve_options_free(&o);
}

static void test_wrong_usage(void **state)
{
        (void)state;
        assert_int_equal(status_of("--max-builds=4"), 0); /* the check itself can succeed */
        static const char *const wrong[] = {
                "--nonsense", "stray", "--max-builds=0", "--max-builds=65", "--max-builds=x", "--build-seconds=0", "--build-seconds=86401",
                "--ready-seconds=0", "--ready-seconds=10m", "--step-cache-mb=0", "--listen=3000",
                "--listen=localhost:3000", "--hypervisor=xen", "--network=bridge", "--log-level=loud", "--log-format=xml", "--public-url=host",
                "--tls-cert=x", "--tls-key=x", "--object-store=s3://b", "--advertise=http://x", "--store=etcd:http://x",
        };
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
                if (status_of(wrong[i]) != 2)
                        fail_msg("%s was taken", wrong[i]);
}

static void test_address(void **state)
{
        (void)state;
        struct serve_address a;
        assert_true(serve_address_parse("0.0.0.0:80", &a));
        assert_string_equal(a.host, "0.0.0.0");
        assert_true(serve_address_parse("[2001:db8::1]:65535", &a));
        assert_string_equal(a.host, "2001:db8::1");
        assert_int_equal(a.port, 65535);
        assert_false(serve_address_parse("", &a));
        assert_false(serve_address_parse(":80", &a));
        assert_false(serve_address_parse("127.0.0.1", &a));
        assert_false(serve_address_parse("127.0.0.1:", &a));
        assert_false(serve_address_parse("127.0.0.1:65536", &a));
        assert_false(serve_address_parse("127.0.0.1:-1", &a));
        assert_false(serve_address_parse("::1:80", &a));
        assert_false(serve_address_parse("[]:80", &a));
        assert_false(serve_address_parse("[127.0.0.1]:80", &a));
        assert_false(serve_address_parse("[::1:80", &a));
        assert_false(serve_address_parse("[0000:0000:0000:0000:0000:0000:0000:0000:0000:0000]:80", &a));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_defaults),    cmocka_unit_test(test_environment), cmocka_unit_test(test_repeated_and_relative),
                cmocka_unit_test(test_wrong_usage), cmocka_unit_test(test_address),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
