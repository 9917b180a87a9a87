# Arch Linux: pacman with a full upgrade (partial ones are not supported there); systemd.
ADMIN_GROUP=wheel
INIT_SYSTEM=systemd
SSH_UNIT=sshd
CHRONY_UNIT=chronyd
PACKAGES="systemd shadow openssh sudo chrony socat curl ca-certificates fuse3 iptables git nfs-utils less nftables
iputils jq bash iproute2"

install_packages() {
    missing=
    for p in $PACKAGES; do
        # -T: what another package provides counts too, such as iptables-nft for iptables.
        pacman -T "$p" >/dev/null 2>&1 || missing="$missing $p"
    done
    [ -z "$missing" ] && return 0
    echo "installing:$missing"
    [ -d /etc/pacman.d/gnupg ] || { pacman-key --init && pacman-key --populate; }
    # shellcheck disable=SC2086
    pacman -Syu --noconfirm --needed $missing ||
        install_failed pacman "$missing"
}

refresh_certificates() { update-ca-trust; }
