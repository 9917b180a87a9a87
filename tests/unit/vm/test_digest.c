/* The digest of artifacts depends on the content, never on where the holes are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "vm/digest.h"

#define MIB (1 << 20)

static int file_of(off_t size)
{
        int fd = memfd_create("digest", MFD_CLOEXEC);

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, size), 0);
        return fd;
}

static void digest(int fd, char *ret)
{
        uint64_t size;

        assert_int_equal(digest_file(fd, &size, ret), 0);
        assert_int_equal(size, lseek(fd, 0, SEEK_END));
}

static void write_at(int fd, off_t at, const void *data, size_t len)
{
        assert_int_equal(pwrite(fd, data, len, at), len);
}

/* Vectors by: python3 -c 'import hashlib as h; …sha256(b"".join(sha256(c).digest() for c in MiBs))' */
static void matches_its_definition(void **state)
{
        static const struct {
                off_t size;
                const char *hex;
        } zeros[] = {
                {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                {MIB, "599d71033d700ac892a0e48fa61b125d2f59941bb45da1909444d43c6ee0bab2"},
                {2 * MIB + 5, "bf12e8b06b11595c4ab5a23315e872e3dabff08d803780464dd08667e9803eb7"},
        };
        char hex[DIGEST_HEX_LEN + 1];

        (void)state;
        for (size_t i = 0; i < sizeof(zeros) / sizeof(*zeros); i++) {
                CLEANUP_CLOSE int fd = file_of(zeros[i].size);

                digest(fd, hex);
                assert_string_equal(hex, zeros[i].hex);
        }
}

static void holes_and_zeros_are_the_same(void **state)
{
        CLEANUP_CLOSE int sparse = file_of(5 * MIB + 100), dense = file_of(5 * MIB + 100);
        CLEANUP_FREE char *zeros = xcalloc(1, 5 * MIB + 100);
        char a[DIGEST_HEX_LEN + 1], b[DIGEST_HEX_LEN + 1];

        (void)state;
        write_at(dense, 0, zeros, 5 * MIB + 100);
        write_at(sparse, 3 * MIB - 2, "abcd", 4); /* over a border */
        write_at(dense, 3 * MIB - 2, "abcd", 4);
        digest(sparse, a);
        digest(dense, b);
        assert_string_equal(a, b);
}

static void every_place_counts(void **state)
{
        static const off_t places[] = {0, MIB - 1, MIB, 3 * MIB, 3 * MIB + 99};
        CLEANUP_CLOSE int fd = file_of(3 * MIB + 100);
        char before[DIGEST_HEX_LEN + 1], after[DIGEST_HEX_LEN + 1];

        (void)state;
        for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
                digest(fd, before);
                write_at(fd, places[i], "x", 1);
                digest(fd, after);
                assert_string_not_equal(before, after);
        }
}

static void the_length_counts(void **state)
{
        CLEANUP_CLOSE int fd = file_of(MIB), longer = file_of(MIB + 1);
        char a[DIGEST_HEX_LEN + 1], b[DIGEST_HEX_LEN + 1];

        (void)state;
        digest(fd, a);
        digest(longer, b);
        assert_string_not_equal(a, b);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(matches_its_definition),
                cmocka_unit_test(holes_and_zeros_are_the_same),
                cmocka_unit_test(every_place_counts),
                cmocka_unit_test(the_length_counts),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
