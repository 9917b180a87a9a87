/* Checks of what makes VMs: programs, QEMU, kit, hypervisor. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/subprocess.h"
#include "cmd/common.h"
#include "cmd/doctor.h"
#include "vm/kit.h"
#include "vm/kit_internal.h"

static bool in_path(const char *program)
{
        CLEANUP_FREE char *path = xstrdup(getenv("PATH") ? getenv("PATH") : "/usr/sbin:/usr/bin:/sbin:/bin");
        char *save = NULL;

        for (char *dir = strtok_r(path, ":", &save); dir; dir = strtok_r(NULL, ":", &save)) {
                CLEANUP_FREE char *file = path_join(dir, program);

                if (access(file, X_OK) == 0)
                        return true;
        }
        return false;
}

static const struct {
        const char *program, *package;
        enum finding_state without;
        const char *purpose;
} programs[] = {
        {"qemu-img", "qemu-utils", FINDING_FAIL, "flattens template disks"},
        {"mke2fs", "e2fsprogs", FINDING_FAIL, "makes root file systems"},
        {"tune2fs", "e2fsprogs", FINDING_FAIL, "makes root file systems"},
        {"nft", "nftables", FINDING_FAIL, "network nat"},
        {"apt-get", "apt", FINDING_WARN, "vmon kit: downloads the guest kernel"},
        {"dpkg-deb", "dpkg", FINDING_WARN, "vmon kit: unpacks it"},
        {"depmod", "kmod", FINDING_WARN, "vmon kit: orders its modules"},
        {"mksquashfs", "squashfs-tools", FINDING_WARN, "vmon kit: packs its modules"},
        {"xz", "xz-utils", FINDING_WARN, "vmon kit: reads Debian 13's modules"},
        {"ldd", "libc-bin", FINDING_WARN, "vmon kit: finds QEMU's libraries"},
};

void doctor_check_programs(struct doctor *d)
{
        CLEANUP_BUF struct buf present = {};

        for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
                if (in_path(programs[i].program))
                        buf_addf(&present, "%s%s", present.len ? ", " : "", programs[i].program);
                else
                        findings_add(&d->findings, "programs", programs[i].without,
                                     xasprintf("%s is missing (%s)", programs[i].program, programs[i].purpose),
                                     xasprintf("apt-get install %s", programs[i].package));
        }
        if (present.len)
                findings_add(&d->findings, "programs", FINDING_OK, buf_steal(&present), NULL);
}

/* The host's QEMU is what the next kit is made of. */
static void check_qemu(struct doctor *d)
{
        CLEANUP(kit_files_free) struct kit_files files = {};
        CLEANUP_BUF struct buf out = {};
        CLEANUP_FREE char *program = NULL;
        const struct kit_arch *arch;
        struct error err = {};
        unsigned major = 0, minor = 0;

        if (kit_arch_find(NULL, &arch, &err) < 0 || kit_qemu_find(arch, &files, &err) < 0) {
                findings_add(&d->findings, "qemu", FINDING_FAIL, xstrdup(err.message),
                             xstrdup("apt-get install qemu-system-x86 qemu-utils virtiofsd (Debian 12: qemu-system-common)"));
                return;
        }
        program = xasprintf("/usr/bin/qemu-system-%s", arch->name);
        if (subprocess_run((const char *const[]){program, "--version", NULL}, &out, &err) < 0 ||
            sscanf(buf_str(&out), "QEMU emulator version %u.%u", &major, &minor) != 2) {
                findings_add(&d->findings, "qemu", FINDING_FAIL, xasprintf("%s tells no version: %s", program, err.message),
                             xasprintf("reinstall it: apt-get install --reinstall %s", arch->qemu_package));
                return;
        }
        if (major < 7 || (major == 7 && minor < 2))
                findings_add(&d->findings, "qemu", FINDING_FAIL, xasprintf("version %u.%u", major, minor),
                             xstrdup("7.2 or newer is needed: Debian 12 or 13"));
        else
                findings_add(&d->findings, "qemu", FINDING_OK,
                             xasprintf("version %u.%u and virtiofsd, %zu files with libraries", major, minor, files.n), NULL);
}

static void check_hypervisor(struct doctor *d, const struct kit *kit)
{
        CLEANUP_FREE char *reason = NULL;
        const char *verdict = NULL;
        struct error err = {};

        if (hypervisor_select(kit, "auto", d->data_dir, &verdict, &reason, &err) < 0) {
                findings_add(&d->findings, "hypervisor", FINDING_FAIL, xstrdup(err.message), NULL);
                return;
        }
        if (streq(verdict, "kvm"))
                findings_add(&d->findings, "hypervisor", FINDING_OK, xasprintf("kvm: %s", reason), NULL);
        else
                findings_add(&d->findings, "hypervisor", FINDING_WARN, xasprintf("tcg (software emulation): %s", reason),
                             xstrdup("everything works, guests run some ten times slower; use a host with KVM for speed"));
}

/* Is the agent in the kit the one beside this program? */
static void check_agent(struct doctor *d, const struct kit *kit)
{
        CLEANUP_FREE char *agent = cmd_sibling("vmon-agent");
        char sha256[65] = "";

        if (agent && kit_sha256_file(agent, sha256, NULL) >= 0 && !streq(sha256, kit->agent_sha256))
                findings_add(&d->findings, "kit", FINDING_WARN, xasprintf("its agent is not %s", agent),
                             xstrdup("run vmon kit"));
}

void doctor_check_guest(struct doctor *d)
{
        struct error err = {};
        struct kit *kit = NULL;

        check_qemu(d);
        if (kit_open(d->kit_dir, NULL, NULL, &kit, &err) < 0) {
                findings_add(&d->findings, "kit", FINDING_FAIL, xstrdup(err.message), xstrdup("run vmon kit"));
                findings_add(&d->findings, "hypervisor", FINDING_WARN, xstrdup("not probed: there is no kit"),
                             xstrdup("run vmon kit, then vmon doctor again"));
                return;
        }
        findings_add(&d->findings, "kit", FINDING_OK,
                     xasprintf("%s: kernel %s, QEMU %s", kit->version, kit->kernel_release, kit->qemu_version), NULL);
        check_agent(d, kit);
        check_hypervisor(d, kit);
        kit_free(kit);
}
