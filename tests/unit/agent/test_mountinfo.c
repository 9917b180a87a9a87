#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/mountinfo.h"

static const char text[] = "21 1 254:0 / / rw,noatime - ext4 /dev/root rw\n"
                           "22 21 0:20 / /proc rw,nosuid shared:3 master:1 - proc proc rw\n"
                           "not a mount\n"
                           "23 21 0:21 / /mnt/a\\040b\\134 rw - tmpfs none rw,size=1024k\n"
                           "24 21 0:22 / relative rw - tmpfs none rw\n";

static void reads_numbers_places_and_types(void **state)
{
        struct mount_entry *m;
        size_t n = mountinfo_parse(text, &m);

        (void)state;
        assert_int_equal(n, 3);
        assert_int_equal(m[0].id, 21);
        assert_string_equal(m[0].path, "/");
        assert_string_equal(m[0].type, "ext4");
        assert_string_equal(m[1].type, "proc"); /* behind two optional fields */
        assert_int_equal(m[2].id, 23);
        assert_string_equal(m[2].path, "/mnt/a b\\");
        mountinfo_free(m, n);
        assert_int_equal(mountinfo_parse("", &m), 0);
        mountinfo_free(m, 0);
}

static void knows_a_mount_by_number_and_place(void **state)
{
        struct mount_entry *m;
        size_t n = mountinfo_parse(text, &m);

        (void)state;
        assert_true(mountinfo_has(m, n, &m[1]));
        assert_true(mountinfo_has(m, n, &(struct mount_entry){ .id = 21, .path = (char[]){ "/" } }));
        assert_false(mountinfo_has(m, n, &(struct mount_entry){ .id = 25, .path = (char[]){ "/" } }));
        assert_false(mountinfo_has(m, n, &(struct mount_entry){ .id = 21, .path = (char[]){ "/elsewhere" } }));
        mountinfo_free(m, n);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(reads_numbers_places_and_types),
                cmocka_unit_test(knows_a_mount_by_number_and_place),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
