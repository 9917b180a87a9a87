/* The guest's half of the kit: kernel, initramfs, modules disk.
 *
 * Theory of operation: the kernel is Debian's linux-image-cloud package, downloaded and verified by apt and unpacked
 * into a temporary folder; nothing of it is installed. The initramfs holds the agent as /init, the modules needed
 * until the modules disk can be mounted in /modules, and /modules/order with one file name a line in load order.
 * It is not compressed: QEMU copies it from the page cache, while inflating it would run on the guest's CPU, which
 * under software emulation is some ten times slower.
 */
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/subprocess.h"
#include "vm/cpio.h"
#include "vm/kit_internal.h"
#include "vm/modules.h"

#define AGENT_MAX (128UL << 20)
#define MODULE_MAX (32UL << 20)
#define CONFIG_MAX (2UL << 20)

/* Needed before the modules disk is mounted, or to mount it; what they depend on comes with them. */
static const char *const boot_modules[] = {"virtio_mmio",  "virtio_blk", "virtio_net",     "virtio_rng",
                                           "virtio_console", "virtio_balloon", "fuse",     "virtiofs",
                                           "squashfs",     "overlay",    "ext4",           NULL};

/* Paths while building: the unpacked package, its release, the modules directory, the target. */
struct guest {
        const struct kit_arch *arch;
        const char *to;
        char *temp;    /* temporary folder */
        char *root;    /* of the unpacked package */
        char *release;
        char *modules; /* lib/modules/<release> of it */
};

static void guest_free(struct guest *g)
{
        if (g->temp)
                tree_remove(g->temp, NULL);
        free(g->temp);
        free(g->root);
        free(g->release);
        free(g->modules);
}

char *kit_parse_depends(const char *text)
{
        static const char key[] = "Depends: linux-image-";
        const char *p = strstr(text, key);

        if (!p)
                return NULL;
        p += strlen("Depends: ");
        return xstrndup(p, strcspn(p, " \n"));
}

char *kit_parse_candidate(const char *text)
{
        static const char key[] = "Candidate: ";
        const char *p = strstr(text, key);

        if (!p || str_starts(p + strlen(key), "(none)"))
                return NULL;
        p += strlen(key);
        return xstrndup(p, strcspn(p, " \n"));
}

int kit_kernel_find(const struct kit_arch *arch, char **ret_package, char **ret_version, struct error *err)
{
        CLEANUP_FREE char *meta = xasprintf("linux-image-cloud-%s:%s", arch->debian, arch->debian);
        CLEANUP_FREE char *package = NULL, *version = NULL, *qualified = NULL;
        CLEANUP_BUF struct buf depends = {}, policy = {};
        int r = subprocess_run((const char *const[]){"apt-cache", "depends", "--important", meta, NULL}, &depends, NULL);

        package = r < 0 ? NULL : kit_parse_depends(buf_str(&depends));
        if (!package)
                return error_set(err, ERROR_UNAVAILABLE,
                                 "apt knows no package %s; run apt-get update (for a foreign architecture first "
                                 "dpkg --add-architecture %s), on Debian 12 or 13",
                                 meta, arch->debian);
        qualified = xasprintf("%.*s:%s", (int)strcspn(package, ":"), package, arch->debian);
        r = subprocess_run((const char *const[]){"apt-cache", "policy", qualified, NULL}, &policy, err);
        if (r < 0)
                return r;
        version = kit_parse_candidate(buf_str(&policy));
        if (!version)
                return error_set(err, ERROR_UNAVAILABLE, "package %s has no candidate; run apt-get update", qualified);
        *ret_package = STEAL(qualified);
        *ret_version = STEAL(version);
        return 0;
}

/* apt downloads as its own user, which must be able to write the folder. */
static int make_temp(struct guest *g, struct error *err)
{
        const char *tmp = getenv("TMPDIR");
        const struct passwd *pw;

        g->temp = xasprintf("%s/vmon-kit-XXXXXX", tmp && tmp[0] == '/' ? tmp : "/tmp");
        if (!mkdtemp(g->temp)) {
                int r = error_errno(err, errno, "create %s", g->temp);

                free(STEAL(g->temp));
                return r;
        }
        pw = geteuid() == 0 ? getpwnam("_apt") : NULL;
        if (chmod(g->temp, 0755) < 0 || (pw && chown(g->temp, pw->pw_uid, (gid_t)-1) < 0))
                return error_errno(err, errno, "prepare %s", g->temp);
        return 0;
}

/* The one entry of a directory that ends in `suffix` ("" = any); NULL when there is none. */
static char *find_entry(const char *dir, const char *suffix)
{
        CLEANUP_CLOSEDIR DIR *d = opendir(dir);
        const struct dirent *e;

        while (d && (e = readdir(d)))
                if (e->d_name[0] != '.' && str_ends(e->d_name, suffix))
                        return xstrdup(e->d_name);
        return NULL;
}

static int download(struct guest *g, const char *package, const char *version, struct error *err)
{
        CLEANUP_FREE char *what = xasprintf("%s=%s", package, version);
        CLEANUP_FREE char *name = NULL, *deb = NULL;
        int r = subprocess_run((const char *const[]){"env", "-C", g->temp, "apt-get", "-q", "download", what, NULL}, NULL,
                               err);

        if (r < 0)
                return error_wrap(err, r, "download %s (is the Debian mirror reachable? try apt-get update)", what);
        name = find_entry(g->temp, ".deb");
        if (!name)
                return error_set(err, ERROR_INTERNAL, "download %s: apt-get left no package", what);
        deb = path_join(g->temp, name);
        g->root = path_join(g->temp, "root");
        r = subprocess_run((const char *const[]){"dpkg-deb", "-x", deb, g->root, NULL}, NULL, err);
        return r < 0 ? error_wrap(err, r, "unpack %s", name) : 0;
}

/* Finds lib/modules/<release> (Debian 12) or usr/lib/modules/<release>, and makes it reachable as the former. */
static int locate(struct guest *g, struct error *err)
{
        CLEANUP_FREE char *plain = path_join(g->root, "lib/modules"), *link = path_join(g->root, "lib");

        if (!path_exists(plain) && !path_exists(link) && symlink("usr/lib", link) < 0)
                return error_errno(err, errno, "link %s", link);
        g->release = find_entry(plain, "");
        if (!g->release)
                return error_set(err, ERROR_INTERNAL, "the kernel package holds no modules");
        g->modules = path_join(plain, g->release);
        return 0;
}

static int install_kernel(const struct guest *g, struct error *err)
{
        CLEANUP_FREE char *from = xasprintf("%s/boot/vmlinuz-%s", g->root, g->release);
        CLEANUP_FREE char *to = path_join(g->to, "vmlinuz");
        int r = subprocess_run((const char *const[]){"cp", from, to, NULL}, NULL, err);

        return r < 0 ? error_wrap(err, r, "install the kernel") : 0;
}

/* The agent, stripped where a strip for its architecture is at hand; it is the same program otherwise. */
static int read_agent(const struct guest *g, const char *path, struct buf *ret, struct error *err)
{
        CLEANUP_FREE char *stripped = path_join(g->temp, "agent");
        const Elf64_Ehdr *h;
        int r = subprocess_run((const char *const[]){g->arch->strip, "-o", stripped, path, NULL}, NULL, NULL);

        r = file_read(r < 0 ? path : stripped, AGENT_MAX, ret, err);
        if (r < 0)
                return error_wrap(err, r, "read the agent");
        h = (const Elf64_Ehdr *)(const void *)ret->data;
        if (ret->len < sizeof(*h) || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0 || h->e_machine != g->arch->elf_machine)
                return error_set(err, ERROR_INVALID, "%s is no program for %s", path, g->arch->name);
        return 0;
}

/* A module's content, decompressed. */
static int read_module(const char *path, struct buf *ret, struct error *err)
{
        const char *tool = str_ends(path, ".xz") ? "xz" : str_ends(path, ".zst") ? "zstd" : str_ends(path, ".gz") ? "gzip" : NULL;

        if (tool)
                return subprocess_run((const char *const[]){tool, "-dc", path, NULL}, ret, err);
        return file_read(path, MODULE_MAX, ret, err);
}

static int add_modules(const struct guest *g, char *const *paths, struct cpio *c, struct error *err)
{
        CLEANUP_BUF struct buf order = {};

        for (; *paths; paths++) {
                CLEANUP_FREE char *path = path_join(g->modules, *paths), *entry = NULL;
                CLEANUP_BUF struct buf content = {};
                char name[MODULE_NAME_MAX];
                int r = module_name(*paths, name);

                if (r >= 0)
                        r = read_module(path, &content, err);
                if (r < 0)
                        return error_wrap(err, r, "module %s", *paths);
                entry = xasprintf("modules/%s.ko", name);
                cpio_add(c, entry, S_IFREG | 0644, 0, content.data, content.len);
                buf_addf(&order, "%s.ko\n", name);
        }
        cpio_add(c, "modules/order", S_IFREG | 0644, 0, order.data, order.len);
        return 0;
}

static int resolve(const struct guest *g, char ***ret, struct error *err)
{
        CLEANUP_FREE char *dep = path_join(g->modules, "modules.dep"), *builtin = path_join(g->modules, "modules.builtin");
        CLEANUP_BUF struct buf dep_text = {}, builtin_text = {};
        int r = file_read(dep, MODULES_TEXT_MAX, &dep_text, err);

        if (r >= 0)
                r = file_read(builtin, MODULES_TEXT_MAX, &builtin_text, err);
        return r < 0 ? r : modules_resolve(buf_str(&dep_text), buf_str(&builtin_text), boot_modules, ret, err);
}

static void add_directories(struct cpio *c)
{
        static const char *const dirs[] = {"dev", "proc", "sys", "run", "newroot", "modules", NULL};

        for (const char *const *d = dirs; *d; d++)
                cpio_add(c, *d, S_IFDIR | 0755, 0, NULL, 0);
        /* /init's descriptors 0 to 2, opened by the kernel before devtmpfs is mounted. */
        cpio_add(c, "dev/console", S_IFCHR | 0600, makedev(5, 1), NULL, 0);
}

static int write_initramfs(const struct guest *g, const char *agent_path, struct error *err)
{
        CLEANUP(cpio_free) struct cpio c = {};
        CLEANUP_BUF struct buf agent = {};
        CLEANUP_FREE char *to = path_join(g->to, "initramfs");
        char **paths = NULL;
        int r = read_agent(g, agent_path, &agent, err);

        if (r < 0)
                return r;
        r = resolve(g, &paths, err);
        if (r < 0)
                return error_wrap(err, r, "modules of %s", g->release);
        add_directories(&c);
        cpio_add(&c, "init", S_IFREG | 0755, 0, agent.data, agent.len);
        r = add_modules(g, paths, &c, err);
        modules_free(paths);
        if (r < 0)
                return r;
        cpio_end(&c);
        return file_write_atomic(to, c.out.data, c.out.len, 0644, err);
}

/* zstd where the kernel can read it, else gzip. */
static const char *compression(const struct guest *g)
{
        CLEANUP_FREE char *path = xasprintf("%s/boot/config-%s", g->root, g->release);
        CLEANUP_BUF struct buf text = {};

        if (file_read(path, CONFIG_MAX, &text, NULL) >= 0 && strstr(text.data, "CONFIG_SQUASHFS_ZSTD=y"))
                return "zstd";
        return "gzip";
}

static int write_modules(const struct guest *g, struct error *err)
{
        CLEANUP_FREE char *to = path_join(g->to, "modules.img");
        /* Level 3: a sixth larger than the default (23 instead of 20 MB), forty times faster, and as fast to read. */
        int r = subprocess_run((const char *const[]){"mksquashfs", g->modules, to, "-quiet", "-no-progress", "-noappend",
                                                     "-all-root", "-no-xattrs", "-comp", compression(g),
                                                     "-Xcompression-level", "3", NULL},
                               NULL, err);

        return r < 0 ? error_wrap(err, r, "make the modules disk") : 0;
}

int kit_guest_build(const struct kit_arch *arch, const char *package, const char *version, const char *agent_path,
                    const char *to, void (*log)(const char *line), char **ret_release, struct error *err)
{
        CLEANUP(guest_free) struct guest g = {.arch = arch, .to = to};
        int r = make_temp(&g, err);

        if (r >= 0 && log)
                log("downloading and unpacking the guest kernel");
        if (r >= 0)
                r = download(&g, package, version, err);
        if (r >= 0)
                r = locate(&g, err);
        if (r >= 0)
                r = subprocess_run((const char *const[]){"depmod", "-b", g.root, g.release, NULL}, NULL, err);
        if (r >= 0)
                r = install_kernel(&g, err);
        if (r >= 0)
                r = write_initramfs(&g, agent_path, err);
        if (r >= 0 && log)
                log("packing the modules disk");
        if (r >= 0)
                r = write_modules(&g, err);
        if (r < 0)
                return r;
        *ret_release = STEAL(g.release);
        return 0;
}
