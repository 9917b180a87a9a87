# What every profile ends with (template-api 10.3, 10.4).
ensure_certificates() {
    [ "$INIT_SYSTEM" = agent ] && return 0
    [ -s /etc/ssl/certs/ca-certificates.crt ] && return 0
    refresh_certificates || fail "the CA certificates could not be refreshed; check the ca-certificates package of the image"
    [ -s /etc/ssl/certs/ca-certificates.crt ] || fail "there is no CA bundle at /etc/ssl/certs/ca-certificates.crt; check the ca-certificates package of the image"
}

set_up_shell() {
    mkdir -p /etc/profile.d /root
    [ -f /etc/profile ] || cat >/etc/profile <<'END'
for f_ in /etc/profile.d/*.sh; do
    if [ -r "$f_" ]; then . "$f_"; fi
done
unset f_
END
    # A distribution's /etc/profile resets PATH; the commands of a build keep the one that ENV steps set.
    cat >/etc/profile.d/vmon-path.sh <<'END'
if [ -n "${VMON_BUILD_PATH:-}" ]; then
    PATH=$VMON_BUILD_PATH
    export PATH
    unset VMON_BUILD_PATH
fi
END
    echo "export SHELL='$(login_shell)'" >/etc/profile.d/shell.sh
    echo "export PS1='\\w \\\$ '" >/etc/profile.d/prompt.sh
    append_once /etc/profile "export PS1='\\w \\\$ '"
    append_once /root/.bashrc "export PS1='\\w \\\$ '"
    append_once /etc/profile 'if [ -f ~/.bashrc ]; then . ~/.bashrc; fi; if [ -f ~/.profile ]; then . ~/.profile; fi'
}

set_up_access() {
    # Only where there is a shadow file: busybox cannot read an account with an empty field in /etc/passwd.
    if [ -f /etc/shadow ] && have passwd; then passwd -d root >/dev/null 2>&1 || :; fi
    [ -d /etc/ssh ] || return 0
    for l in "PermitRootLogin yes" "PermitEmptyPasswords yes" "PasswordAuthentication yes"; do
        append_once /etc/ssh/sshd_config "$l"
    done
}

set_up_clock() {
    [ "$INIT_SYSTEM" = agent ] && return 0
    mkdir -p /usr/local/bin /etc/chrony
    cat >/usr/local/bin/vmon-chrony-source <<'END'
#!/bin/sh
# Chooses the time source at boot: what the build host has says nothing about where a sandbox runs.
mkdir -p /run/chrony-e2b
if [ -e /dev/ptp0 ]; then
    echo 'refclock PHC /dev/ptp0 poll 2 dpoll -2 offset 0 stratum 2 trust prefer'
else
    echo 'pool pool.ntp.org iburst'
fi >/run/chrony-e2b/source.conf
END
    chmod 755 /usr/local/bin/vmon-chrony-source
    printf 'include /run/chrony-e2b/source.conf\nmakestep 1.0 3\n' >/etc/chrony/chrony.conf
    printf 'include /etc/chrony/chrony.conf\n' >/etc/chrony.conf
    if [ "$INIT_SYSTEM" = openrc ]; then
        mkdir -p /etc/conf.d
        append_once /etc/conf.d/chronyd 'ARGS="-F 0"'
        append_once /etc/conf.d/chronyd 'start_pre() { /usr/local/bin/vmon-chrony-source; }'
    fi
}

set_up_kernel() {
    mkdir -p /etc/sysctl.d /etc/tmpfiles.d
    printf 'fs.inotify.max_user_watches=65536\nvm.compaction_proactiveness=0\n' >/etc/sysctl.d/60-vmon.conf
    echo 'z /dev/fuse 0666 root root -' >/etc/tmpfiles.d/fuse.conf
}

set_up_seed_certs() {
    cat >/usr/local/bin/vmon-seed-certs <<'END'
#!/bin/sh
# Puts the CA store into memory before anything asks for it: reading hundreds of small files from a cold disk is slow.
# A store that was changed after it was packed is left alone.
tar=/usr/local/share/e2b/ssl-certs.tar
store=/etc/ssl/certs
[ -s "$tar" ] && [ -d "$store" ] || exit 0
[ "$store" -nt "$tar" ] && exit 0
[ "$store/ca-certificates.crt" -nt "$tar" ] && exit 0
mkdir -p /run/vmon-certs
mount -t tmpfs -o size=32m,mode=755 tmpfs /run/vmon-certs || exit 0
if tar -xf "$tar" -C /run/vmon-certs; then
    mount --bind /run/vmon-certs/certs "$store" || umount /run/vmon-certs
else
    umount /run/vmon-certs
fi
exit 0
END
    chmod 755 /usr/local/bin/vmon-seed-certs
}

write_envd_unit() {
    mkdir -p /etc/systemd/system /etc/systemd/system-preset
    cat >/etc/systemd/system/envd.service <<'END'
[Unit]
Description=Guest agent (envd)
DefaultDependencies=no
Wants=vmon-seed-certs.service
After=systemd-remount-fs.service vmon-seed-certs.service
Before=basic.target shutdown.target
Conflicts=shutdown.target
StartLimitIntervalSec=0

[Service]
Type=simple
ExecStart=/usr/bin/envd
Restart=always
RestartSec=1
User=root
Group=root
Nice=-20
IOSchedulingClass=realtime
IOSchedulingPriority=4
OOMScoreAdjust=-1000
OOMPolicy=continue
Delegate=yes
TasksMax=infinity
LimitCORE=infinity
KillMode=mixed
TimeoutStopSec=5

[Install]
WantedBy=multi-user.target
END
    cat >/etc/systemd/system/vmon-seed-certs.service <<'END'
[Unit]
Description=CA store in memory
DefaultDependencies=no
After=systemd-remount-fs.service
Before=envd.service basic.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/bin/vmon-seed-certs

[Install]
WantedBy=multi-user.target
END
    cat >/etc/systemd/system/vmon-chrony-source.service <<END
[Unit]
Description=Time source
Before=$CHRONY_UNIT.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/bin/vmon-chrony-source

[Install]
WantedBy=multi-user.target
END
    # The machine ID is made on the first boot, on which systemd applies its presets.
    cat >/etc/systemd/system-preset/00-e2b.preset <<'END'
enable envd.service
enable vmon-seed-certs.service
enable vmon-chrony-source.service
disable systemd-networkd.service
disable systemd-networkd.socket
disable systemd-resolved.service
END
}

write_drop_ins() {
    for u in systemd-journald systemd-networkd; do
        mkdir -p "/etc/systemd/system/$u.service.d"
        printf '[Service]\nWatchdogSec=0\n' >"/etc/systemd/system/$u.service.d/vmon.conf"
    done
    mkdir -p /etc/systemd/journald.conf.d "/etc/systemd/system/serial-getty@ttyS0.service.d"
    printf '[Journal]\nStorage=persistent\nSystemMaxUse=8M\n' >/etc/systemd/journald.conf.d/vmon.conf
    cat >"/etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf" <<'END'
[Service]
ExecStart=
ExecStart=-/sbin/agetty --noissue --autologin root %I 115200,38400,9600 vt102
END
}

set_up_systemd() {
    export SYSTEMD_OFFLINE=1
    write_envd_unit
    write_drop_ins
    systemctl -q mask serial-getty@ttyS0.service systemd-networkd-wait-online.service systemd-firstboot.service \
        chrony-wait.service systemd-binfmt.service e2scrub_reap.service || fail "systemctl could not mask units; check the systemd package of the image"
    systemctl -q enable envd.service vmon-seed-certs.service vmon-chrony-source.service ||
        fail "systemctl could not enable the agent; check the systemd package of the image"
    systemctl -q enable "$CHRONY_UNIT.service" "$SSH_UNIT.service" || warn "time synchronisation or SSH could not be enabled"
}

# link_at PATH TARGET: unless it leads to TARGET already. An image may have brought an init of its own.
link_at() {
    [ "$(readlink -f "$1")" = "$(readlink -f "$2")" ] && return 0
    if [ -e "$1" ]; then warn "$1 was another program; it is now $2"; fi
    rm -f "$1"
    ln -s "$2" "$1" || fail "$1 could not be linked to $2"
}

link_init() {
    for i in /lib/systemd/systemd /usr/lib/systemd/systemd; do
        if [ -x "$i" ]; then
            mkdir -p /usr/sbin
            link_at /usr/sbin/init "$i"
            [ -L /sbin ] || link_at /sbin/init "$i"
            return 0
        fi
    done
    fail "systemd is not there although its package is; use an image with a complete one"
}

set_up_openrc() {
    mkdir -p /usr/local/share/e2b
    cat >/usr/local/share/e2b/envd.openrc <<'END'
#!/sbin/openrc-run
description="Guest agent (envd)"
supervisor=supervise-daemon
command=/usr/bin/envd
respawn_delay=1
respawn_max=0

start_pre() {
    /usr/local/bin/vmon-seed-certs
}
END
    install -m 755 /usr/local/share/e2b/envd.openrc /etc/init.d/envd 2>/dev/null ||
        { cp /usr/local/share/e2b/envd.openrc /etc/init.d/envd && chmod 755 /etc/init.d/envd; }
    cat >/etc/inittab <<'END'
::sysinit:/sbin/openrc sysinit
::sysinit:/sbin/openrc boot
::wait:/sbin/openrc default
::ctrlaltdel:/sbin/reboot
::shutdown:/sbin/openrc shutdown
END
    [ -e /usr/sbin/init ] || { mkdir -p /usr/sbin && ln -s /sbin/init /usr/sbin/init; }
    [ -f /etc/network/interfaces ] || { mkdir -p /etc/network && printf 'auto lo\niface lo inet loopback\n' >/etc/network/interfaces; }
    for s in devfs sysfs procfs dmesg mdev; do rc-update -q add "$s" sysinit || :; done
    for s in localmount sysctl hostname bootmisc networking; do rc-update -q add "$s" boot || :; done
    for s in "$CHRONY_UNIT" "$SSH_UNIT"; do rc-update -q add "$s" default || warn "service $s could not be enabled"; done
    rc-update -q add envd default || fail "the agent's service could not be enabled; check the openrc package of the image"
}

record() {
    init=/sbin/init
    [ "$INIT_SYSTEM" = agent ] && init=agent
    mkdir -p /usr/local/share/e2b
    printf 'DISTRO_ID=%s\nINIT_SYSTEM=%s\nADMIN_GROUP=%s\n' "${DISTRO_ID:-}" "$INIT_SYSTEM" "$ADMIN_GROUP" \
        >/usr/local/share/e2b/distro.env
    result init "$init"
}

install_packages
ensure_certificates
set_up_shell
set_up_access
set_up_clock
set_up_kernel
case $INIT_SYSTEM in
systemd)
    set_up_seed_certs
    set_up_systemd
    link_init
    rm -f /etc/machine-id /var/lib/dbus/machine-id
    ;;
openrc)
    set_up_seed_certs
    set_up_openrc
    rm -f /etc/machine-id
    ;;
esac
record
