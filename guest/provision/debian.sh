# Debian and Ubuntu: apt, systemd.
ADMIN_GROUP=sudo
INIT_SYSTEM=systemd
SSH_UNIT=ssh
CHRONY_UNIT=chrony
PACKAGES="systemd systemd-sysv openssh-server sudo chrony socat curl ca-certificates fuse3 iptables git nfs-common
less nftables iputils-ping jq iproute2"
export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes

is_installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

# What maintainer scripts find first in PATH. ca-certificates updates the store twice at its first installation: without
# the hooks in its postinst, then in full by a trigger. Each is hundreds of processes, and the second leaves what both do.
TOOLS=/run/vmon/provision
make_tools() {
    mkdir -p "$TOOLS" || fail "$TOOLS could not be created"
    cat >"$TOOLS/update-ca-certificates" <<'END'
#!/bin/sh
due=/run/vmon/provision/certificates-due
if [ $# -eq 2 ] && [ "$1" = --hooksdir ] && [ -z "$2" ] && [ -n "${DPKG_MAINTSCRIPT_NAME:-}" ]; then
    : >"$due"
    exit 0
fi
PATH=${PATH#/run/vmon/provision:}
update-ca-certificates "$@" && rm -f "$due"
END
    chmod 755 "$TOOLS/update-ca-certificates"
}

# A version without that trigger leaves it to us.
remove_tools() {
    if [ -e "$TOOLS/certificates-due" ]; then update-ca-certificates || fail "update-ca-certificates failed; check the certificates that the image or a step put in its stores"; fi
    rm -rf "$TOOLS"
}

# No fsync for every file: the file system is synced once, when the layer is taken. No descriptions of packages. A cache
# of the indexes for this run, which images of containers are set up not to keep.
apt_get() {
    path_=$TOOLS:$PATH
    PATH=$path_ apt-get -q -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io \
        -o Dpkg::Options::=--force-confold -o "DPkg::Path=$path_" -o Acquire::Languages=none \
        -o Dir::Cache::pkgcache="$TOOLS/pkgcache.bin" -o Dir::Cache::srcpkgcache="$TOOLS/srcpkgcache.bin" \
        -o Acquire::Retries=3 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 "$@"
}

apt_sources() {
    for s in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        if [ -f "$s" ]; then printf '%s\n' "$s"; fi
    done
}

uses_debian_hosts() {
    for s in $(apt_sources); do
        grep -Eq '^[^#]*https?://(deb|security)\.debian\.org' "$s" && return 0
    done
    return 1
}

# End-of-life releases move to the archive, while the default hosts keep serving indexes for packages that are gone.
use_archive() {
    for s in $(apt_sources); do
        sed -i -E \
            -e 's#https?://security\.debian\.org/debian-security#http://archive.debian.org/debian-security#g' \
            -e 's#https?://security\.debian\.org#http://archive.debian.org/debian-security#g' \
            -e 's#https?://deb\.debian\.org#http://archive.debian.org#g' "$s"
    done
    # Release files of the archive are never renewed.
    printf 'Acquire::Check-Valid-Until "false";\n' >/etc/apt/apt.conf.d/99vmon-archive
}

# update may fail for one source of many: whether the packages can be installed is what counts.
try_install() {
    apt_get update || :
    # shellcheck disable=SC2086
    apt_get install -y --no-install-recommends $missing
}

# Nothing may start services here: PID 1 is the agent.
forbid_services() {
    [ -e /usr/sbin/policy-rc.d ] && mv /usr/sbin/policy-rc.d /usr/sbin/policy-rc.d.vmon
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
}

allow_services() {
    rm -f /usr/sbin/policy-rc.d
    [ -e /usr/sbin/policy-rc.d.vmon ] && mv /usr/sbin/policy-rc.d.vmon /usr/sbin/policy-rc.d
    return 0
}

install_packages() {
    missing=
    for p in $PACKAGES; do
        is_installed "$p" || missing="$missing $p"
    done
    [ -z "$missing" ] && return 0
    echo "installing:$missing"
    make_tools
    forbid_services
    if ! try_install; then
        uses_debian_hosts || install_failed apt-get "$missing"
        warn "installing packages failed; this release may have reached its end of life: its apt sources now use archive.debian.org"
        use_archive
        try_install || install_failed apt-get "$missing" ", not from archive.debian.org either"
    fi
    allow_services
    remove_tools
    apt-get clean || :
}

refresh_certificates() { update-ca-certificates; }
