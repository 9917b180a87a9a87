#!/bin/sh
# Stands in for the package managers and service tools of the distributions whose packages the tests cannot reach. One
# file under many names: it notes each call in /stand-in/calls, keeps /stand-in/installed and makes what a package would bring.
# Switches of a test: /stand-in/lacks (packages that no repository has), /stand-in/fails (names of tools that fail).
db=/stand-in
name=${0##*/}
printf '%s' "$name" >>$db/calls
for a in "$@"; do printf ' %s' "$a" >>$db/calls; done
echo >>$db/calls
grep -qx "$name" $db/fails 2>/dev/null && { echo "$name: failing as told" >&2; exit 1; }

installed() { grep -qx -- "$1" $db/installed 2>/dev/null; }
tool() { mkdir -p "${1%/*}" && cp $db/stand-in.sh "$1" && chmod 755 "$1"; }
file() { mkdir -p "${1%/*}" && [ -e "$1" ] || printf '%s\n' "$2" >"$1"; }

# What the package brings, as far as the scripts look at it.
bring() {
    case $1 in
    systemd)
        file /usr/lib/systemd/systemd systemd && chmod 755 /usr/lib/systemd/systemd
        tool /usr/bin/systemctl
        ;;
    openrc)
        file /sbin/openrc openrc && chmod 755 /sbin/openrc
        tool /sbin/rc-update
        mkdir -p /etc/init.d /etc/conf.d
        ;;
    openssh | openssh-server) file /etc/ssh/sshd_config '# from the package' ;;
    sudo) file /etc/sudoers 'root ALL=(ALL:ALL) ALL' && chmod 440 /etc/sudoers ;;
    chrony) file /etc/chrony.conf 'pool from the package' ;;
    ca-certificates) if [ -e /usr/bin/pacman ] || [ -e /usr/bin/rpm ]; then tool /usr/bin/update-ca-trust; else tool /usr/sbin/update-ca-certificates; fi ;;
    bash) [ -e /bin/bash ] || cp /bin/sh /bin/bash ;;
    esac
}

# install PACKAGE…: options are skipped; fails when asked for only a part that exists, unless told to skip.
install_all() {
    for p in "$@"; do
        case $p in -* | install | add) continue ;; esac
        installed "$p" && continue
        grep -qx -- "$p" $db/lacks 2>/dev/null && { [ -n "${skip:-}" ] && continue; echo "no package $p" >&2; return 1; }
        echo "$p" >>$db/installed
        bring "$p"
    done
}

# The words after the sub-command.
after() {
    word_=$1
    shift
    while [ $# -gt 0 ] && [ "$1" != "$word_" ]; do shift; done
    [ $# -gt 0 ] && shift
    install_all "$@"
}

case $name in
dpkg-query) for p in "$@"; do :; done; installed "$p" && echo installed ;;
apt-get)
    case " $* " in
    *" install "*)
        # Hosts that no longer carry the packages: their names are in /stand-in/gone.
        if [ -s $db/gone ] && cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -qFf $db/gone; then
            echo 'E: Failed to fetch: 404 Not Found' >&2
            exit 100
        fi
        after install "$@"
        ;;
    esac
    ;;
rpm) for p in "$@"; do :; done; installed "$p" ;;
dnf) skip=yes; after install "$@" ;;
microdnf | yum) after install "$@" ;;
pacman)
    case $1 in
    -T) installed "$2" || { echo "$2"; exit 127; } ;;
    -S*) shift; install_all "$@" ;;
    esac
    ;;
apk)
    case $1 in
    info) installed "$3" ;;
    add) install_all "$@" ;;
    esac
    ;;
update-ca-certificates) mkdir -p /etc/ssl/certs && echo bundle >/etc/ssl/certs/ca-certificates.crt ;;
update-ca-trust)
    mkdir -p /etc/pki/ca-trust/extracted/pem && echo bundle >/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem
    if [ -e /usr/bin/pacman ]; then mkdir -p /etc/ssl/certs && echo bundle >/etc/ssl/certs/ca-certificates.crt; fi
    ;;
systemctl)
    case " $* " in
    *" mask "*) for u in "$@"; do case $u in *.service) ln -sfn /dev/null /etc/systemd/system/$u ;; esac; done ;;
    *" enable "*)
        mkdir -p /etc/systemd/system/multi-user.target.wants
        for u in "$@"; do case $u in *.service) ln -sfn /etc/systemd/system/$u /etc/systemd/system/multi-user.target.wants/$u ;; esac; done
        ;;
    esac
    ;;
rc-update)
    [ "$1" = -q ] && shift
    mkdir -p "/etc/runlevels/$3" && ln -sfn "/etc/init.d/$2" "/etc/runlevels/$3/$2"
    ;;
esac
