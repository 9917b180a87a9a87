/* The kit's own QEMU.
 *
 * Theory of operation: device state in a snapshot fits the QEMU that wrote it and microvm has no versioned machine
 * type (design 6), so that a host upgrade must not reach the QEMU of existing snapshots. Therefore a kit holds QEMU,
 * virtiofsd and everything that both load: the shared objects that ldd names, the accelerator module, the firmware.
 *
 * glibc's loader and libc must be of one build, hence the loader is in the kit too. It cannot be executed by hand
 * ("ld.so qemu …"), because QEMU finds its modules relative to /proc/self/exe; instead the copied program's
 * PT_INTERP is redirected to the kit's loader: the new path is appended to the file and the program header points
 * there. The libraries are found by LD_LIBRARY_PATH (kit.qemu_lib).
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/subprocess.h"
#include "vm/kit_internal.h"

#define ELF_PHDRS_MAX 64

void kit_files_free(struct kit_files *f)
{
        for (size_t i = 0; i < f->n; i++) {
                free(f->items[i].from);
                free(f->items[i].to);
        }
        free(f->items);
        free(f->loader);
        *f = (struct kit_files){};
}

/* Takes both strings over; the first of a destination wins. */
static void add(struct kit_files *f, char *from, char *to)
{
        for (size_t i = 0; i < f->n; i++)
                if (streq(f->items[i].to, to)) {
                        free(from);
                        free(to);
                        return;
                }
        f->items = xreallocarray(f->items, f->n + 1, sizeof(*f->items));
        f->items[f->n++] = (struct kit_file){from, to};
}

/* "\tlibz.so.1 => /lib/libz.so.1 (0x7f…)", "\t/lib64/ld-linux-x86-64.so.2 (0x7f…)", "\tlinux-vdso.so.1 (0x7f…)". */
static int parse_ldd_line(char *line, struct kit_files *ret, struct error *err)
{
        char *arrow = strstr(line, " => "), *end;
        char *path = arrow ? arrow + 4 : line;
        const char *name;

        if (arrow && str_starts(path, "not found")) {
                *arrow = '\0';
                return error_set(err, ERROR_UNAVAILABLE, "library %s is not installed; reinstall QEMU's packages", line);
        }
        end = strstr(path, " (");
        if (path[0] != '/' || !end)
                return 0; /* vdso, "statically linked" */
        *end = '\0';
        if (arrow)
                *arrow = '\0';
        name = strrchr(arrow ? line : path, '/');
        name = name ? name + 1 : line;
        add(ret, xstrdup(path), xasprintf("lib/%s", name));
        if (str_starts(name, "ld-linux") && !ret->loader)
                ret->loader = xasprintf("lib/%s", name);
        return 0;
}

int kit_parse_ldd(const char *text, struct kit_files *ret, struct error *err)
{
        CLEANUP_FREE char *copy = xstrdup(text);
        char *save = NULL;

        for (char *line = strtok_r(copy, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
                int r = parse_ldd_line(str_trim(line), ret, err);

                if (r < 0)
                        return r;
        }
        return 0;
}

static int add_libraries(struct kit_files *f, const char *object, struct error *err)
{
        CLEANUP_BUF struct buf out = {};
        int r = subprocess_run((const char *const[]){"ldd", object, NULL}, &out, err);

        if (r < 0)
                return error_wrap(err, r, "libraries of %s", object);
        return kit_parse_ldd(buf_str(&out), f, err);
}

static int add_program(struct kit_files *f, const char *const *candidates, const char *package, struct error *err)
{
        for (const char *const *c = candidates; *c; c++) {
                if (!path_exists(*c))
                        continue;
                add(f, xstrdup(*c), xasprintf("bin/%s", strrchr(*c, '/') + 1));
                return add_libraries(f, *c, err);
        }
        return error_set(err, ERROR_UNAVAILABLE, "%s is missing; install it: apt-get install %s", candidates[0], package);
}

static int add_firmware(struct kit_files *f, const char *name, const char *package, struct error *err)
{
        static const char *const dirs[] = {"/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu", NULL};

        for (const char *const *d = dirs; *d; d++) {
                CLEANUP_FREE char *path = path_join(*d, name);

                if (path_exists(path)) {
                        add(f, STEAL(path), xasprintf("share/qemu/%s", name));
                        return 0;
                }
        }
        return error_set(err, ERROR_UNAVAILABLE, "QEMU's firmware %s is missing; install it: apt-get install %s", name,
                         package);
}

/* TCG is a module in Debian 12's QEMU, found relative to the program as in /usr. Where it is built in, there is
 * nothing to copy. The modules for screens, sound and remote block devices are left behind on purpose. */
static int add_accelerators(struct kit_files *f, const struct kit_arch *arch, struct error *err)
{
        CLEANUP_FREE char *pattern = xasprintf("/usr/lib/*/qemu/accel-tcg-%s.so", arch->name);
        glob_t g = {};
        int r = 0;

        if (glob(pattern, 0, NULL, &g) == 0)
                for (size_t i = 0; i < g.gl_pathc && r >= 0; i++) {
                        add(f, xstrdup(g.gl_pathv[i]), xstrdup(g.gl_pathv[i] + strlen("/usr/")));
                        r = add_libraries(f, g.gl_pathv[i], err);
                }
        globfree(&g);
        return r;
}

int kit_qemu_find(const struct kit_arch *arch, struct kit_files *ret, struct error *err)
{
        CLEANUP_FREE char *program = xasprintf("/usr/bin/qemu-system-%s", arch->name);
        const char *const emulator[] = {program, NULL};
        static const char *const virtiofsd[] = {"/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd", NULL};
        CLEANUP(kit_files_free) struct kit_files f = {};
        int r = add_program(&f, emulator, arch->qemu_package, err);

        if (r >= 0)
                r = add_program(&f, virtiofsd, "virtiofsd (Debian 12: qemu-system-common)", err);
        if (r >= 0)
                r = add_accelerators(&f, arch, err);
        for (const char *const *name = arch->firmware; *name && r >= 0; name++)
                r = add_firmware(&f, *name, "qemu-system-data seabios", err);
        if (r >= 0 && !f.loader)
                r = error_set(err, ERROR_INTERNAL, "%s: ldd names no dynamic loader", program);
        if (r < 0)
                return r;
        *ret = f;
        f = (struct kit_files){};
        return 0;
}

int kit_qemu_version(const struct kit_arch *arch, char **ret, struct error *err)
{
        CLEANUP_FREE char *program = xasprintf("/usr/bin/qemu-system-%s", arch->name);
        CLEANUP_BUF struct buf out = {};
        char *text;
        int r;

        r = subprocess_run((const char *const[]){"dpkg-query", "-W", "-f", "${Version}", arch->qemu_package, NULL}, &out,
                           NULL);
        if (r < 0 || !out.len) {
                buf_clear(&out);
                r = subprocess_run((const char *const[]){program, "--version", NULL}, &out, err);
                if (r < 0)
                        return r;
        }
        text = out.data ? out.data : "";
        text[strcspn(text, "\n")] = '\0';
        *ret = xstrdup(text);
        return 0;
}

char *kit_files_describe(const struct kit_files *f)
{
        struct buf out = {};

        for (size_t i = 0; i < f->n; i++) {
                struct stat st;
                int64_t size = stat(f->items[i].from, &st) == 0 ? (int64_t)st.st_size : -1;

                buf_addf(&out, "%s %" PRId64 "\n", f->items[i].to, size);
        }
        return buf_steal(&out);
}

static int copy_file(const char *from, const char *to, struct error *err)
{
        CLEANUP_FREE char *parent = xstrndup(to, (size_t)(strrchr(to, '/') - to));
        CLEANUP_CLOSE int in = -1, out = -1;
        struct stat st;
        int r = dir_make(parent, 0755, err);

        if (r < 0)
                return r;
        in = open(from, O_RDONLY | O_CLOEXEC);
        if (in < 0 || fstat(in, &st) < 0)
                return error_errno(err, errno, "open %s", from);
        out = open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
        if (out < 0)
                return error_errno(err, errno, "create %s", to);
        r = fd_copy_sparse(in, out, err);
        if (r < 0)
                return error_wrap(err, r, "copy %s", from);
        if (fchmod(out, (st.st_mode & 0111) || str_starts(strrchr(to, '/'), "/ld-linux") ? 0755 : 0644) < 0)
                return error_errno(err, errno, "chmod %s", to);
        return 0;
}

/* The file position of the PT_INTERP header; fills it. 0 when there is none. */
static off_t find_interp(int fd, Elf64_Phdr *ret)
{
        Elf64_Ehdr h;

        if (pread(fd, &h, sizeof(h), 0) != (ssize_t)sizeof(h) || memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 ||
            h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_phentsize != sizeof(*ret) || h.e_phnum > ELF_PHDRS_MAX)
                return 0;
        for (unsigned i = 0; i < h.e_phnum; i++) {
                off_t at = (off_t)(h.e_phoff + i * sizeof(*ret));

                if (pread(fd, ret, sizeof(*ret), at) == (ssize_t)sizeof(*ret) && ret->p_type == PT_INTERP)
                        return at;
        }
        return 0;
}

int kit_set_interpreter(const char *path, const char *interpreter, struct error *err)
{
        CLEANUP_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
        size_t len = strlen(interpreter) + 1;
        Elf64_Phdr p;
        off_t at, end;

        if (fd < 0)
                return error_errno(err, errno, "open %s", path);
        if (len > PATH_MAX)
                return error_set(err, ERROR_INVALID, "the path of the kit is too long");
        at = find_interp(fd, &p);
        if (!at)
                return error_set(err, ERROR_INTERNAL, "%s is no dynamically linked 64-bit program", path);
        end = lseek(fd, 0, SEEK_END);
        p.p_offset = (Elf64_Off)end;
        p.p_filesz = len;
        if (end < 0 || pwrite(fd, interpreter, len, end) != (ssize_t)len ||
            pwrite(fd, &p, sizeof(p), at) != (ssize_t)sizeof(p))
                return error_errno(err, errno ? errno : EIO, "write %s", path);
        return 0;
}

int kit_qemu_copy(const struct kit_files *f, const char *to, const char *final, struct error *err)
{
        CLEANUP_FREE char *loader = xasprintf("%s/qemu/%s", final, f->loader);
        CLEANUP_FREE char *data = path_join(to, "qemu/share/qemu");
        int r = dir_make(data, 0755, err);

        for (size_t i = 0; i < f->n && r >= 0; i++) {
                CLEANUP_FREE char *path = xasprintf("%s/qemu/%s", to, f->items[i].to);

                r = copy_file(f->items[i].from, path, err);
                if (r >= 0 && str_starts(f->items[i].to, "bin/"))
                        r = kit_set_interpreter(path, loader, err);
        }
        return r;
}

int kit_qemu_try(const struct kit_arch *arch, const char *dir, struct error *err)
{
        static const char quit[] = "{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\"}\n";
        CLEANUP_FREE char *lib = xasprintf("LD_LIBRARY_PATH=%s/qemu/lib", dir);
        CLEANUP_FREE char *program = xasprintf("%s/qemu/bin/qemu-system-%s", dir, arch->name);
        CLEANUP_FREE char *virtiofsd = xasprintf("%s/qemu/bin/virtiofsd", dir);
        CLEANUP_FREE char *data = xasprintf("%s/qemu/share/qemu", dir);
        const char *const emulator[] = {"env",      "-i",      lib,        program, "-M",    arch->machine, "-accel",
                                        "tcg",      "-L",      data,       "-nodefaults",    "-no-user-config",
                                        "-display", "none",    "-S",       "-qmp",  "stdio", NULL};
        int r = subprocess_feed(emulator, quit, sizeof(quit) - 1, NULL, err);

        if (r >= 0)
                r = subprocess_run((const char *const[]){"env", "-i", lib, virtiofsd, "--version", NULL}, NULL, err);
        return r < 0 ? error_wrap(err, r, "try the kit's QEMU") : 0;
}
