#!/bin/bash
# usage: test_vm.sh VM_LIFECYCLE VMON_SHIM KIT_DIR
# A busybox guest booted, captured and forked under the real shim, and nothing left over. Root; status 77 = skipped.
set -u
lifecycle=$1 shim=$2 kit=${3:-${VMON_KIT_DIR:-/var/lib/vmon/kit}}
[ "$(id -u)" = 0 ] || { echo "skipped: needs root"; exit 77; }
[ -e "$kit/$(uname -m)/current/kit.json" ] || { echo "skipped: no kit in $kit (vmon kit)"; exit 77; }
for tool in busybox mke2fs; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done

# A network of its own: other VMs of this machine do not count.
[ "${IN_NAMESPACE:-}" = 1 ] || exec env IN_NAMESPACE=1 unshare --net "$0" "$@"

tmp=$(mktemp -d /tmp/vmon-test-vm-XXXXXX)
chmod 0711 "$tmp"
trap 'rm -rf "$tmp"' EXIT
root=$tmp/root
mkdir -p "$root"/{bin,sbin,etc,proc,sys,dev,run,tmp,usr/bin,root}
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in $("$root/bin/busybox" --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
install -m 0777 "${VMON_AGENT:-$(dirname "$shim")/vmon-agent}" "$root/usr/bin/envd" || exit 1 # what finalize boots
mke2fs -q -F -t ext4 -d "$root" "$tmp/rootfs.img" 64M || exit 1
mkdir "$tmp/share"
tar -C "$root" --numeric-owner --owner=0 --group=0 -cf "$tmp/share/layer.tar" . || exit 1

links() { ip -o link 2>/dev/null | grep -c vmon; }
before=$(links)
VMON_SHIM=$shim "$lifecycle" "$kit" "$tmp"
status=$?
expect() { if [ "$2" = "$3" ]; then echo "ok   $1"; else echo "FAIL $1: $2 instead of $3"; status=1; fi; }
expect "no QEMU is left" "$(pgrep -f -c -- '-name (unpack|finalize|fork-[01]) ' 2>/dev/null || true)" 0
expect "no network link is left" "$(links)" "$before"
expect "no socket is left" "$(find "$tmp" -type s | wc -l)" 0
expect "no cgroup is left" "$(find /sys/fs/cgroup -type d \( -path '*/vmon/unpack' -o -path '*/vmon/finalize' -o -path '*/vmon/fork-?' \) 2>/dev/null | wc -l)" 0
in_image() { debugfs -R "cat $2" "$tmp/$1" 2>/dev/null; }
expect "the frozen layer has the first step" "$(in_image layer0.img step1)" 1
expect "the frozen layer has not the second" "$(in_image layer0.img step2)" ""
e2fsck -fy "$tmp/flat.img" >/dev/null 2>&1 # the VM was killed: its journal is replayed, as the next mount would
expect "the chain has both" "$(in_image flat.img step1)$(in_image flat.img step2)" 12
exit $status
