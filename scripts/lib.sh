# shellcheck shell=bash
# Shared by quickstart, check and the test scripts: packages, builds, fixtures. Sourced by bash.
# Theory: every script can run on a machine that has nothing but Debian 12 or 13; whatever is missing is
# installed with apt-get or npm, and what cannot be installed ends the script with one line that names the mend.

set -o pipefail
VMON_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '==> %s\n' "$*"; }
die() {
        printf 'error: %s\n' "$*" >&2
        exit 1
}

# The packages of this Debian release. Groups: build (compile), run (serve, kit), test (fixtures), lint, bench (what is compared).
packages_of() {
        local release
        # shellcheck source=/dev/null
        release=$(. /etc/os-release && echo "${VERSION_ID%%.*}")
        case $1 in
        build)
                echo gcc libc6-dev meson ninja-build pkg-config libuv1-dev libcurl4-openssl-dev libjansson-dev \
                        libsqlite3-dev libssl-dev libc-ares-dev zlib1g-dev libzstd-dev libarchive-dev libacl1-dev libcmocka-dev
                if [ "$release" = 12 ]; then echo libhttp-parser-dev; else echo libllhttp-dev; fi
                ;;
        run)
                case $(dpkg --print-architecture) in
                amd64) echo qemu-system-x86 ;;
                arm64) echo qemu-system-arm ;;
                esac
                echo qemu-utils e2fsprogs squashfs-tools kmod xz-utils zstd nftables iproute2 ca-certificates
                [ "$release" = 12 ] || echo virtiofsd
                ;;
        image) echo debootstrap umoci skopeo docker-registry ;;
        node) echo nodejs npm ;;
        test) echo attr bindfs busybox-static cpio curl jq python3 python3-venv ;;
        bench) echo buildah wrk nginx-light ;;
        lint) echo cppcheck clang-tidy clang shellcheck libclang-rt-14-dev ;;
        esac
}

# install_packages GROUP…: installs what is missing of the groups; silent when nothing is.
install_packages() {
        local missing=() group package
        for group in "$@"; do
                for package in $(packages_of "$group"); do
                        case $package in
                        nodejs) command -v node >/dev/null && continue ;;
                        npm) command -v npm >/dev/null && continue ;;
                        esac
                        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' ||
                                missing+=("$package")
                done
        done
        [ ${#missing[@]} -eq 0 ] && return 0
        [ "$(id -u)" = 0 ] || die "packages are missing: run as root: apt-get install ${missing[*]}"
        say "installing packages: ${missing[*]}"
        local log
        log=$(mktemp)
        if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
                "${missing[@]}"; } >"$log" 2>&1; then
                tail -n 20 "$log" >&2
                rm -f "$log"
                die "apt-get could not install: ${missing[*]} (see above; vmon needs Debian 12 or 13 with a reachable mirror)"
        fi
        rm -f "$log"
}

# build_vmon [DIR [MESON-OPTION…]]: configures once, builds.
build_vmon() {
        local dir=${1:-$VMON_ROOT/build} log
        shift || true
        log=$(mktemp)
        if [ ! -f "$dir/build.ninja" ]; then
                meson setup "$dir" "$VMON_ROOT" "$@" >"$log" 2>&1 || {
                        tail -n 20 "$log" >&2
                        rm -f "$log"
                        die "meson could not configure $dir (remove it and try again)"
                }
        fi
        ninja -C "$dir" >"$log" 2>&1 || {
                grep -A20 -m3 'FAILED' "$log" >&2 || tail -n 30 "$log" >&2
                rm -f "$log"
                die "the build failed (ninja -C $dir)"
        }
        rm -f "$log"
}

# use_node DIR: npm ci in DIR, and a node that the e2b package supports (>= 20.18.1) in $NODE. Debian 12 has
# node 18; there the binary comes from the npm registry's node package for this platform, locked in DIR.
use_node() {
        local dir=$1 log
        install_packages node
        log=$(mktemp)
        if ! cmp -s "$dir/package-lock.json" "$dir/node_modules/.installed-lock" 2>/dev/null; then
                (cd "$dir" && npm ci --no-audit --no-fund) >"$log" 2>&1 || {
                        tail -n 20 "$log" >&2
                        rm -f "$log"
                        die "npm ci failed in $dir (is the npm registry reachable?)"
                }
                cp "$dir/package-lock.json" "$dir/node_modules/.installed-lock"
        fi
        rm -f "$log"
        NODE=node
        if ! node -e 'const [a,b,c]=process.versions.node.split(".").map(Number);
                      process.exit(a>=22||(a===20&&(b>18||(b===18&&c>=1)))?0:1)'; then
                for NODE in "$dir"/node_modules/node-linux-*/bin/node; do :; done
                [ -x "$NODE" ] || die "node $(node --version) is too old for the e2b package (20.18.1 or newer) and the npm package node-linux-* is missing in $dir"
        fi
        export NODE
}

# use_python_sdk DIR: a virtual environment in DIR/venv with DIR/requirements.txt, its interpreter in $VMON_PYTHON; empty where no
# package index is reachable, and the tests that need it say so.
use_python_sdk() {
        local dir=$1 sum
        sum=$(sha256sum <"$dir/requirements.txt")
        export VMON_PYTHON=
        if [ "$sum" != "$(cat "$dir/venv/complete" 2>/dev/null)" ]; then
                rm -rf "$dir/venv"
                python3 -m venv "$dir/venv" >&2 || die "cannot make a virtual environment in $dir"
                "$dir/venv/bin/pip" --disable-pip-version-check download --no-deps --quiet -d "$dir/venv/probe" six >/dev/null 2>&1 || return 0
                "$dir/venv/bin/pip" --disable-pip-version-check install --quiet -r "$dir/requirements.txt" >&2 || die "cannot install $dir/requirements.txt"
                echo "$sum" >"$dir/venv/complete"
        fi
        VMON_PYTHON=$dir/venv/bin/python
}

# free_port: prints a TCP port of 127.0.0.1 that is free now.
free_port() {
        python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'
}

# wait_http URL SECONDS PID: waits until URL answers anything, fails when PID is gone.
wait_http() {
        local until=$((SECONDS + $2))
        while ! curl -s -o /dev/null --max-time 2 "$1"; do
                kill -0 "$3" 2>/dev/null || return 1
                [ $SECONDS -lt $until ] || return 1
                sleep 0.1
        done
}

# stop_pid PID: ends a process that we started and waits for it.
stop_pid() {
        kill "$1" 2>/dev/null || return 0
        for _ in $(seq 100); do
                kill -0 "$1" 2>/dev/null || return 0
                sleep 0.1
        done
        kill -9 "$1" 2>/dev/null || true
}

# start_registry DIR PORT: a real registry on loopback with its storage in DIR; sets REGISTRY_PID.
start_registry() {
        mkdir -p "$1/storage"
        cat >"$1/config.yml" <<EOF
version: 0.1
log: {level: error}
storage:
  filesystem: {rootdirectory: $1/storage}
  delete: {enabled: true}
http: {addr: 127.0.0.1:$2}
EOF
        setsid docker-registry serve "$1/config.yml" >"$1/log" 2>&1 </dev/null &
        REGISTRY_PID=$!
        wait_http "http://127.0.0.1:$2/v2/" 20 "$REGISTRY_PID" ||
                die "the local registry did not start on 127.0.0.1:$2: $(tail -n 1 "$1/log")"
}

# push_tree TREE NAME:TAG PORT [umoci-config-option…]: pushes a directory as a one-layer image.
push_tree() {
        local tree=$1 name=$2 port=$3 work
        shift 3
        work=$(mktemp -d)
        (
                cd "$work" &&
                        umoci init --layout oci &&
                        umoci new --image oci:latest &&
                        umoci insert --image oci:latest "$tree" / &&
                        umoci config --image oci:latest --config.cmd /bin/sh "$@" &&
                        skopeo --insecure-policy copy -q --dest-tls-verify=false oci:oci:latest "docker://127.0.0.1:$port/$name"
        ) >"$work/log" 2>&1 || {
                tail -n 5 "$work/log" >&2
                rm -rf "$work"
                die "could not make or push the image $name"
        }
        rm -rf "$work"
}

# make_debian_tree DIR: a Debian minbase tree, made once (the directory appears only when complete).
make_debian_tree() {
        [ -d "$1" ] && return 0
        say "making a Debian image with debootstrap (about a minute)"
        rm -rf "$1.tmp"
        debootstrap --variant=minbase bookworm "$1.tmp" >"$1.log" 2>&1 || {
                tail -n 5 "$1.log" >&2
                die "debootstrap failed (is the Debian mirror reachable?)"
        }
        rm -rf "$1.tmp"/var/cache/apt/archives/*.deb "$1.tmp"/var/lib/apt/lists/*
        mv "$1.tmp" "$1"
}

# make_busybox_tree DIR: busybox and nothing else: an image of no known distribution.
make_busybox_tree() {
        [ -d "$1" ] && return 0
        rm -rf "$1.tmp"
        mkdir -p "$1.tmp"/{bin,sbin,usr/bin,usr/sbin,etc,root,tmp,home}
        cp "$(command -v busybox)" "$1.tmp/bin/busybox"
        chroot "$1.tmp" /bin/busybox --install -s
        printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$1.tmp/etc/passwd"
        printf 'root:x:0:\nnogroup:x:65534:\n' >"$1.tmp/etc/group"
        chmod 1777 "$1.tmp/tmp"
        mv "$1.tmp" "$1"
}

# make_bash_tree DIR DEBIAN: bash, GNU coreutils and the account tools of the Debian tree, but no distribution that can be told: what a
# profile sees as unknown, with a real login shell (whose /etc/profile resets PATH), and small enough to unpack in seconds.
make_bash_tree() {
        [ -d "$1" ] && return 0
        rm -rf "$1.tmp"
        cp -a "$2" "$1.tmp"
        rm -rf "$1.tmp"/var/* "$1.tmp"/usr/share/{locale,doc,man,zoneinfo,perl5,bash-completion} "$1.tmp"/usr/lib/{apt,os-release} \
                "$1.tmp"/etc/{os-release,apt,debian_version} "$1.tmp"/usr/lib/*/{gconv,perl-base,libapt-*,libstdc++*,libgnutls*,libicu*} \
                "$1.tmp"/usr/bin/{apt*,dpkg*,perl*}
        mkdir -p "$1.tmp"/var/{tmp,log,mail}
        mv "$1.tmp" "$1"
}
