/* Indexes, manifests, configs and the choice of platform. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/str.h"
#include "oci/manifest.h"

#define HEX(c) "sha256:" c c c c c c c c c c c c c c c c
#define DA HEX("aaaa")
#define DB HEX("bbbb")
#define DC HEX("cccc")
#define IMAGE_TYPE "application/vnd.oci.image.manifest.v1+json"
#define INDEX_TYPE "application/vnd.oci.image.index.v1+json"
#define CONFIG "\"config\":{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"" DA "\",\"size\":10}"
#define LAYER(type, digest, size) "{\"mediaType\":\"" type "\",\"digest\":\"" digest "\",\"size\":" size "}"
#define GZIP "application/vnd.docker.image.rootfs.diff.tar.gzip"

static int parse(const char *text, const char *type, struct manifest *m, struct error *err)
{
        return manifest_parse(text, strlen(text), type, m, err);
}

static void image(void **state)
{
        struct manifest m;
        struct error err = {};

        (void)state;
        assert_int_equal(parse("{\"schemaVersion\":2,\"mediaType\":\"" IMAGE_TYPE "\"," CONFIG ",\"layers\":[" LAYER(GZIP, DB, "7") "]}",
                               IMAGE_TYPE "; charset=utf-8", &m, &err), 0);
        assert_int_equal(m.kind, MANIFEST_IMAGE);
        assert_int_equal(m.count, 1);
        assert_string_equal(m.items[0].digest, DB);
        assert_int_equal(m.items[0].size, 7);
        assert_string_equal(m.config.digest, DA);
        manifest_free(&m);
}

static void embedded(void **state)
{
        struct manifest m;

        (void)state;
        assert_int_equal(parse("{\"schemaVersion\":2,\"config\":{\"digest\":\"" DA "\",\"size\":4,\"data\":\"YWJjZA==\"},\"layers\":[]}",
                               NULL, &m, NULL), 0);
        assert_non_null(m.config.data);
        assert_memory_equal(m.config.data, "abcd", 4);
        manifest_free(&m);
        /* of another size than stated: ignored */
        assert_int_equal(parse("{\"schemaVersion\":2,\"config\":{\"digest\":\"" DA "\",\"size\":5,\"data\":\"YWJjZA==\"},\"layers\":[]}",
                               NULL, &m, NULL), 0);
        assert_null(m.config.data);
        manifest_free(&m);
}

static void refused(void **state)
{
        static const struct {
                const char *text, *type, *part;
        } cases[] = {
                {"", NULL, "JSON"},
                {"[]", NULL, "no JSON object"},
                {"{}", NULL, "schemaVersion"},
                {"{\"schemaVersion\":1,\"fsLayers\":[]}", NULL, "schema 1"},
                {"{\"schemaVersion\":2}", "application/vnd.docker.distribution.manifest.v1+prettyjws", "schema 1"},
                {"{\"schemaVersion\":2}", NULL, "neither"},
                {"{\"schemaVersion\":2,\"manifests\":[],\"layers\":[]}", NULL, "ambiguous"},
                {"{\"schemaVersion\":2,\"manifests\":[]," CONFIG "}", NULL, "ambiguous"},
                {"{\"schemaVersion\":2,\"manifests\":[]}", IMAGE_TYPE, "announced"},
                {"{\"schemaVersion\":2,\"mediaType\":\"" INDEX_TYPE "\"," CONFIG ",\"layers\":[]}", NULL, "announced"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[]}", "text/html", "unsupported manifest type"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":{}}", NULL, "no list"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[1]}", NULL, "without a digest"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[" LAYER(GZIP, "sha256:../../x", "1") "]}", NULL, "unsupported digest"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[" LAYER(GZIP, DB, "-1") "]}", NULL, "no size"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[" LAYER(GZIP, DB, "\"9\"") "]}", NULL, "no size"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[" LAYER(GZIP, DB, "9000000000000000") "]}", NULL, "larger"},
                {"{\"schemaVersion\":2," CONFIG ",\"layers\":[" LAYER("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", DB, "1") "]}",
                 NULL, "unsupported type"},
                {"{\"schemaVersion\":2,\"config\":{\"mediaType\":\"application/vnd.cncf.helm.config.v1+json\",\"digest\":\"" DA
                 "\",\"size\":1},\"layers\":[]}", NULL, "artifact"},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                struct manifest m = {};
                struct error err = {};

                assert_true(parse(cases[i].text, cases[i].type, &m, &err) < 0);
                if (!strstr(err.message, cases[i].part))
                        fail_msg("case %zu: '%s' does not say '%s'", i, err.message, cases[i].part);
        }
}

#define ENTRY(digest, os, arch, more) \
        "{\"mediaType\":\"" IMAGE_TYPE "\",\"digest\":\"" digest "\",\"size\":1,\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch "\"" more "}}"

static void choose(void **state)
{
        static const struct {
                const char *entries, *arch;
                int chosen;
        } cases[] = {
                {ENTRY(DA, "linux", "arm64", "") "," ENTRY(DB, "linux", "amd64", ""), "amd64", 1},
                {ENTRY(DA, "windows", "amd64", "") "," ENTRY(DB, "linux", "amd64", ""), "amd64", 1},
                {ENTRY(DA, "linux", "amd64", ",\"variant\":\"v3\"") "," ENTRY(DB, "linux", "amd64", ",\"variant\":\"v2\"") ","
                 ENTRY(DC, "linux", "amd64", ""), "amd64", 2},
                {ENTRY(DA, "linux", "amd64", ",\"variant\":\"v3\"") "," ENTRY(DB, "linux", "amd64", ",\"variant\":\"v2\""), "amd64", 1},
                {ENTRY(DA, "unknown", "unknown", "") "," ENTRY(DB, "linux", "arm64", ",\"variant\":\"v8\""), "arm64", 1},
                {"{\"digest\":\"" DA "\",\"size\":1}", "amd64", 0},
                {"{\"digest\":\"" DA "\",\"size\":1}," ENTRY(DB, "linux", "amd64", ""), "amd64", 1},
                {ENTRY(DA, "linux", "x86_64", ""), "amd64", 0},
                {ENTRY(DA, "linux", "arm64", ""), "amd64", -1},
                {"", "amd64", -1},
        };

        (void)state;
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
                CLEANUP_FREE char *text = xasprintf("{\"schemaVersion\":2,\"manifests\":[%s]}", cases[i].entries);
                struct manifest m = {};
                struct error err = {};
                size_t chosen = 99;
                int r;

                assert_int_equal(parse(text, INDEX_TYPE, &m, NULL), 0);
                r = index_choose(&m, cases[i].arch, &chosen, &err);
                if (cases[i].chosen < 0) {
                        assert_int_equal(err.kind, ERROR_NOT_FOUND);
                        assert_true(r < 0);
                } else
                        assert_int_equal(chosen, cases[i].chosen);
                manifest_free(&m);
        }
}

static void config(void **state)
{
        static const char text[] = "{\"os\":\"linux\",\"architecture\":\"arm64\",\"config\":{\"Env\":[\"A=1\",\"B=\",\"=x\",\"C\",7,\"D=a=b\"]},"
                                   "\"rootfs\":{\"diff_ids\":[\"" DA "\",\"" DB "\"]}}";
        struct image_config c;
        struct error err = {};

        (void)state;
        assert_int_equal(image_config_parse(text, strlen(text), &c, &err), 0);
        assert_string_equal(c.architecture, "arm64");
        assert_string_equal(c.env[0], "A=1");
        assert_string_equal(c.env[1], "D=a=b");
        assert_null(c.env[2]);
        assert_int_equal(c.diff_id_count, 2);
        image_config_free(&c);
        assert_int_equal(image_config_parse("{}", 2, &c, &err), 0);
        assert_null(c.env[0]);
        image_config_free(&c);
        assert_true(image_config_parse("[]", 2, &c, &err) < 0);
        assert_true(image_config_parse("{\"rootfs\":{\"diff_ids\":[3]}}", 27, &c, &err) < 0);
}

static void machine(void **state)
{
        (void)state;
        assert_string_equal(oci_architecture("x86_64"), "amd64");
        assert_string_equal(oci_architecture("aarch64"), "arm64");
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(image), cmocka_unit_test(embedded), cmocka_unit_test(refused),
                cmocka_unit_test(choose), cmocka_unit_test(config), cmocka_unit_test(machine),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
