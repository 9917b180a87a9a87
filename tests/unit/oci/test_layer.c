/* Decompression with diff_ids, and the cache it reads from. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/rand.h"
#include "base/str.h"
#include "oci/blob.h"
#include "oci/digest.h"
#include "oci/oci.h"

static char *dir;

static int setup(void **state)
{
        char id[9];

        (void)state;
        random_id(id, 8);
        dir = xasprintf("/tmp/vmon-test-layer-%s", id);
        return blob_cache_prepare(dir, NULL);
}

static int teardown(void **state)
{
        (void)state;
        tree_remove(dir, NULL);
        free(dir);
        return 0;
}

static void gzip(struct buf *out, const void *data, size_t len)
{
        z_stream z = {};
        size_t room = len + len / 100 + 100;

        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_in = (void *)data;
        z.avail_in = (unsigned)len;
        z.next_out = (void *)buf_reserve(out, room);
        z.avail_out = (unsigned)room;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        buf_grew(out, room - z.avail_out);
        deflateEnd(&z);
}

static void zstd(struct buf *out, const void *data, size_t len)
{
        size_t room = ZSTD_compressBound(len), n = ZSTD_compress(buf_reserve(out, room), room, data, len, 3);

        assert_false(ZSTD_isError(n));
        buf_grew(out, n);
}

static char *content(size_t len)
{
        char *p = xmalloc(len + 1);

        for (size_t i = 0; i < len; i++)
                p[i] = (char)((i * i) >> 7);
        return p;
}

/* Stores `blob` and extracts it as a layer whose tar should be `expected`. */
static int extract(const struct buf *blob, const char *expected, size_t len, uint64_t limit, struct error *err)
{
        const struct oci_options o = { .cache_dir = dir };
        char digest[DIGEST_TEXT_MAX], diff_id[DIGEST_TEXT_MAX];
        struct oci_layer layer = { .digest = digest, .diff_id = diff_id };
        struct oci_image image = { .reference = (char *)"x", .layers = &layer, .layer_count = 1 };
        CLEANUP_FREE char *path = path_join(dir, "out");
        CLEANUP_BUF struct buf out = {};
        uint64_t size = 0;
        int r;

        digest_of(buf_str(blob), blob->len, digest);
        digest_of(expected, len, diff_id);
        assert_int_equal(blob_store(dir, digest, buf_str(blob), blob->len, NULL), 0);
        r = oci_extract(&o, &image, 0, path, limit, &size, NULL, err);
        if (r < 0) {
                assert_false(path_exists(path));
                return r;
        }
        assert_int_equal(size, len);
        assert_int_equal(file_read(path, len + 512, &out, NULL), 0);
        assert_int_equal(out.len, (len + 511) / 512 * 512); /* whole tar blocks: umoci does not pad the last file */
        assert_memory_equal(buf_str(&out), expected, len);
        for (size_t i = len; i < out.len; i++)
                assert_int_equal(buf_str(&out)[i], 0);
        assert_int_equal(remove(path), 0);
        return 0;
}

/* Every encoding, at sizes around the block borders. */
static void encodings(void **state)
{
        static const size_t sizes[] = {0, 1, 3, 4, 5, 1000, 524287, 524288, 524289, 3000000};

        (void)state;
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
                size_t len = sizes[i], half = len / 2;
                CLEANUP_FREE char *data = content(len);
                CLEANUP_BUF struct buf plain = {}, gz = {}, members = {}, zs = {}, frames = {};

                buf_add(&plain, data, len);
                gzip(&gz, data, len);
                gzip(&members, data, half);
                gzip(&members, data, 0);
                gzip(&members, data + half, len - half);
                buf_add(&members, "\0\0\0\0\0", 5);
                zstd(&zs, data, len);
                zstd(&frames, data, half);
                buf_add(&frames, "\x50\x2a\x4d\x18\3\0\0\0abc", 11); /* skippable */
                zstd(&frames, data + half, len - half);
                assert_int_equal(extract(&plain, data, len, UINT64_MAX, NULL), 0);
                assert_int_equal(extract(&gz, data, len, len, NULL), 0);
                assert_int_equal(extract(&members, data, len, len, NULL), 0);
                assert_int_equal(extract(&zs, data, len, len, NULL), 0);
                assert_int_equal(extract(&frames, data, len, len, NULL), 0);
        }
}

static void refused(const struct buf *blob, const char *expected, size_t len, uint64_t limit, const char *part)
{
        struct error err = {};

        assert_true(extract(blob, expected, len, limit, &err) < 0);
        if (!strstr(err.message, part))
                fail_msg("'%s' does not say '%s'", err.message, part);
}

static void damage(void **state)
{
        const size_t len = 1000000;
        CLEANUP_FREE char *data = content(len);
        CLEANUP_BUF struct buf gz = {}, zs = {}, garbage = {}, flipped = {};

        (void)state;
        gzip(&gz, data, len);
        zstd(&zs, data, len);
        buf_add(&garbage, gz.data, gz.len);
        buf_adds(&garbage, "garbage");
        buf_add(&flipped, gz.data, gz.len);
        flipped.data[flipped.len / 2] ^= 1;
        refused(&garbage, data, len, UINT64_MAX, "damaged");
        refused(&gz, data, len, len - 1, "limit");
        refused(&gz, data, len - 1, UINT64_MAX, "diff_id mismatch");
        refused(&flipped, data, len, UINT64_MAX, "layer 1/1");
        gz.len -= 5;
        zs.len -= 5;
        refused(&gz, data, len, UINT64_MAX, "cut off");
        refused(&zs, data, len, UINT64_MAX, "cut off");
}

/* A blob that rots in the cache is told apart from a wrong image, and removed. */
static void rotten(void **state)
{
        const struct oci_options o = { .cache_dir = dir };
        char digest[DIGEST_TEXT_MAX], diff_id[DIGEST_TEXT_MAX];
        struct oci_layer layer = { .digest = digest, .diff_id = diff_id };
        struct oci_image image = { .reference = (char *)"x", .layers = &layer, .layer_count = 1 };
        CLEANUP_FREE char *path = NULL, *out = path_join(dir, "out");
        struct error err = {};

        (void)state;
        digest_of("content", 7, digest);
        digest_of("content", 7, diff_id);
        assert_int_equal(blob_store(dir, digest, "content", 7, NULL), 0);
        assert_true(blob_present(dir, digest, 7));
        path = blob_path(dir, digest);
        assert_int_equal(file_write_atomic(path, "c0ntent", 7, 0600, NULL), 0);
        assert_int_equal(oci_extract(&o, &image, 0, out, 100, NULL, NULL, &err), -EAGAIN);
        assert_non_null(strstr(err.message, "removed"));
        assert_false(path_exists(path));
        assert_false(path_exists(out));
}

static void cache(void **state)
{
        char digest[DIGEST_TEXT_MAX];
        CLEANUP_FREE char *path = NULL;
        CLEANUP_BUF struct buf b = {};

        (void)state;
        digest_of("abc", 3, digest);
        assert_string_equal(digest, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        path = blob_path(dir, digest);
        assert_true(blob_store(dir, digest, "abd", 3, NULL) < 0);
        assert_false(path_exists(path));
        assert_int_equal(blob_read(dir, digest, 100, &b, NULL), -ENOENT);
        assert_int_equal(blob_store(dir, digest, "abc", 3, NULL), 0);
        assert_int_equal(blob_read(dir, digest, 100, &b, NULL), 0);
        assert_string_equal(buf_str(&b), "abc");
        assert_false(blob_present(dir, digest, 4)); /* another size: damaged, removed */
        assert_false(path_exists(path));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(encodings), cmocka_unit_test(damage), cmocka_unit_test(rotten), cmocka_unit_test(cache),
        };

        return cmocka_run_group_tests(tests, setup, teardown);
}
