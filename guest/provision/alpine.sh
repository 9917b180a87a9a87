# Alpine: apk, OpenRC below busybox's init.
ADMIN_GROUP=wheel
INIT_SYSTEM=openrc
SSH_UNIT=sshd
CHRONY_UNIT=chronyd
PACKAGES="openrc shadow openssh sudo chrony socat curl ca-certificates fuse3 iptables git nfs-utils less nftables
iputils jq bash util-linux-misc iproute2"

install_packages() {
    missing=
    for p in $PACKAGES; do
        apk info -e "$p" >/dev/null 2>&1 || missing="$missing $p"
    done
    [ -z "$missing" ] && return 0
    echo "installing:$missing"
    # shellcheck disable=SC2086
    apk add --no-cache $missing || install_failed apk "$missing"
}

refresh_certificates() { update-ca-certificates; }
