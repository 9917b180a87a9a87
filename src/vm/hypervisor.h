/* Parts of hypervisor_select() (kit.h) that doctor and tests use on their own. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "vm/kit.h"

/* Does the text of /proc/cpuinfo offer hardware virtualisation (the flags vmx or svm)? */
bool hypervisor_cpuinfo_has_virtualisation(const char *text);

/* Can this host in principle run guests of `arch` by KVM: same architecture, CPU flag, /dev/kvm opens?
 * `ret_reason` (caller frees, may be NULL) names what is missing, or is NULL. */
bool hypervisor_kvm_possible(const char *arch, char **ret_reason);

/* Boots the kit kernel with the accelerator ("kvm", "tcg") and waits until the agent in its initramfs has answered a
 * ping. 0, or ERROR_UNAVAILABLE with the last line of the console. `temp_dir` holds the console meanwhile. */
int hypervisor_probe(const struct kit *kit, const char *accelerator, unsigned timeout_s, const char *temp_dir,
                     struct error *err);
