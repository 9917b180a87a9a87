# shellcheck shell=bash
# Roots of made-up distributions, the guest scripts run in them as vmon runs them, and assertions. Sourced by the suites.
ROOT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
GUEST=$ROOT_DIR/guest/provision
HERE=$ROOT_DIR/tests/provision
passed=0 failed=0 current=''

ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL: $current: $*"; }
# check WHAT COMMAND…
check() { local what=$1; shift; if "$@"; then ok; else bad "$what"; fi; }
same() { if [ "$2" = "$3" ]; then ok; else bad "$1: got '$2', expected '$3'"; fi; }

# add_program ROOT PROGRAM…: from this machine, with its libraries.
add_program() {
        local root=$1 program path lib
        shift
        for program in "$@"; do
                path=$(command -v "$program") || { echo "there is no $program here" >&2; return 1; }
                cp -L "$path" "$root/usr/bin/${program##*/}"
                for lib in $(ldd "$path" 2>/dev/null | grep -oE '/[^ ]+'); do
                        [ -e "$root$lib" ] || { mkdir -p "$root${lib%/*}" && cp -L "$lib" "$root$lib"; }
                done
        done
}

# make_root DIR SHELL: /bin/sh is dash, bash or busybox; with busybox nothing else is there.
make_root() {
        local root=$1 shell=$2
        rm -rf "$root"
        mkdir -p "$root"/{usr/bin,usr/sbin,etc,root,tmp,run,dev,proc,var/lib,stand-in}
        if [ "$shell" = busybox ]; then
                mkdir -p "$root"/{bin,sbin}
                cp "$(command -v busybox)" "$root/bin/busybox"
                chroot "$root" /bin/busybox --install -s
                rm -f "$root"/{bin,sbin,usr/bin,usr/sbin}/{chattr,dpkg,dpkg-deb,rpm,ash-none}
        else
                ln -s usr/bin "$root/bin"
                ln -s usr/sbin "$root/sbin"
                add_program "$root" "$shell" mkdir rm cat ln cp mv chmod chown touch grep sed find id readlink install ls tar sync \
                        env sort useradd usermod groupadd
                [ "$shell" = sh ] || ln -sfn "$shell" "$root/usr/bin/sh"
        fi
        printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
        printf 'root:x:0:\nsudo:x:27:\nwheel:x:10:\n' >"$root/etc/group"
        printf 'root:*:19000:0:99999:7:::\n' >"$root/etc/shadow"
        printf '0123456789abcdef0123456789abcdef\n' >"$root/etc/machine-id"
        mknod -m 666 "$root/dev/null" c 1 3
        cp "$HERE/stand-in.sh" "$root/stand-in/stand-in.sh"
        : >"$root/stand-in/calls"
}

# add_stand_ins ROOT PATH…
add_stand_ins() {
        local root=$1 path
        shift
        for path in "$@"; do install -D -m 755 "$HERE/stand-in.sh" "$root$path"; done
}

# add_installed ROOT PACKAGE…: the image brought them.
add_installed() { local root=$1; shift; printf '%s\n' "$@" >>"$root/stand-in/installed"; }

# guest ROOT ASSIGNMENTS PART…: the parts as one script, as src/build/script.c runs it; its output in $output.
guest() {
        local root=$1 text=$2 part status
        shift 2
        for part in "$@"; do text+=$'\n'$(cat "$GUEST/$part.sh"); done
        # An own mount namespace: nothing that a script mounts outlives it.
        output=$(unshare -m chroot "$root" /bin/sh -c "$text" 2>&1 </dev/null)
        status=$?
        return $status
}

detect() { guest "$1" '' lib detect; }
provision() { guest "$1" "DISTRO_ID='$2'" lib "$3" common; }
configure() { guest "$1" $'TEMPLATE_ID=t1\nBUILD_ID=b1' lib user configure; }

set_of() { printf '%s\n' "$output" | sed -n "s/^::set:: $1=//p"; }
warned() { printf '%s\n' "$output" | grep '^::warn::' | grep -qF -- "$1"; }
# failed_with TEXT: the reason, one line, has it.
failed_with() { [ "$(printf '%s\n' "$output" | grep -c '^::fail:: ')" = 1 ] && printf '%s\n' "$output" | sed -n '$p' | grep '^::fail:: ' | grep -qF -- "$1"; }
called() { grep -qxF -- "$2" "$1/stand-in/calls"; }
calls_of() { grep -cE "^$2( |\$)" "$1/stand-in/calls"; }
has_line() { grep -qxF -- "$2" "$1"; }
times() { [ "$(grep -cxF -- "$2" "$1")" = "$3" ]; }
# is FILE TEXT: exactly that and a newline.
is() { [ "$(cat "$1" 2>/dev/null; echo .)" = "$2"$'\n.' ]; }
leads_to() { [ "$(readlink "$1")" = "$2" ]; }

# fingerprint ROOT: every name, mode, owner, link and content, but the notes of the stand-ins and the copies that passwd keeps.
fingerprint() {
        (cd "$1" && find . -path ./stand-in -prune -o ! -path './etc/*-' -printf '%p %m %U:%G %l\n' | LC_ALL=C sort &&
                find . -path ./stand-in -prune -o ! -path './etc/*-' -type f -exec sha256sum {} + | LC_ALL=C sort -k 2)
}
