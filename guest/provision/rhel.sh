# Fedora, CentOS, Rocky, Alma and what calls itself like them: dnf, microdnf or yum; systemd.
ADMIN_GROUP=wheel
INIT_SYSTEM=systemd
SSH_UNIT=sshd
CHRONY_UNIT=chronyd
PACKAGES="systemd shadow-utils passwd openssh-server sudo chrony socat curl ca-certificates fuse3 iptables git nfs-utils
less nftables iputils jq bash tar iproute"

missing_packages() {
    missing=
    for p in $PACKAGES; do
        # curl-minimal, passwd as a part of shadow-utils and the like count too.
        rpm -q --whatprovides "$p" >/dev/null 2>&1 || missing="$missing $p"
    done
}

install_packages() {
    missing_packages
    [ -z "$missing" ] && return 0
    echo "installing:$missing"
    # shellcheck disable=SC2086
    if have dnf; then
        # dnf 5 has an option of its own for names that a release does not have; dnf 4 takes them for broken.
        dnf -y --allowerasing --setopt=install_weak_deps=False --setopt=tsflags=nodocs --skip-broken \
            --setopt=skip_unavailable=True install $missing
    elif have microdnf; then
        microdnf -y --setopt=install_weak_deps=0 --nodocs install $missing
    elif have yum; then
        yum -y install $missing
    else
        fail "this image has neither dnf nor microdnf nor yum to install the packages that a template needs:$missing; use an image that has one or brings them"
    fi || install_failed "the package manager" "$missing"
    missing_packages
    [ -z "$missing" ] || warn "this distribution does not have these packages that templates usually have:$missing"
}

refresh_certificates() {
    update-ca-trust extract || return 1
    mkdir -p /etc/ssl/certs
    [ -s /etc/ssl/certs/ca-certificates.crt ] && return 0
    for f in /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem /etc/pki/tls/certs/ca-bundle.crt; do
        if [ -s "$f" ]; then
            ln -sf "$f" /etc/ssl/certs/ca-certificates.crt
            return 0
        fi
    done
}
