# Fedora, CentOS, Rocky, Alma and what calls itself like them: dnf, microdnf or yum; systemd.
ADMIN_GROUP=wheel
INIT_SYSTEM=systemd
SSH_UNIT=sshd
CHRONY_UNIT=chronyd
PACKAGES="systemd shadow-utils passwd openssh-server sudo chrony socat curl ca-certificates fuse3 iptables git nfs-utils
less nftables iputils jq bash tar iproute"

install_packages() {
    missing=
    for p in $PACKAGES; do
        # curl-minimal, passwd as a part of shadow-utils and the like count too.
        rpm -q --whatprovides "$p" >/dev/null 2>&1 || missing="$missing $p"
    done
    [ -z "$missing" ] && return 0
    echo "installing:$missing"
    # shellcheck disable=SC2086
    if have dnf; then
        dnf -y --allowerasing --setopt=install_weak_deps=False --setopt=tsflags=nodocs --skip-broken install $missing
    elif have microdnf; then
        microdnf -y --setopt=install_weak_deps=0 --nodocs install $missing
    else
        yum -y install $missing
    fi || fail "the package manager could not install the packages that a template needs:$missing"
}

refresh_certificates() {
    update-ca-trust extract || return 1
    mkdir -p /etc/ssl/certs
    [ -s /etc/ssl/certs/ca-certificates.crt ] ||
        ln -sf /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/certs/ca-certificates.crt
}
