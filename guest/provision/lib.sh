# Helpers of the guest scripts. vmon sends a script as lib.sh plus the parts it needs, with values set in front, to
# /bin/sh as root; so everything here is plain POSIX shell that dash and busybox run too.
#
# Output goes to the build log at debug. Three kinds of lines are for vmon itself (src/build/script_output.c):
#   ::warn:: TEXT     a warning in the build log
#   ::set:: KEY=VALUE a result
#   ::fail:: TEXT     the reason of the failure: one line with what went wrong and what to do about it
set -u
umask 022

warn() { printf '::warn:: %s\n' "$*"; }
result() { printf '::set:: %s=%s\n' "$1" "$2"; }
fail() { printf '::fail:: %s\n' "$*" >&2; exit 1; }
# install_failed MANAGER PACKAGES [WHERE]
install_failed() {
    fail "$1 could not install the packages that a template needs${3:-}:$2; check that its package sources have them and can be" \
        "reached from the VM, or use an image that brings them"
}
have() { command -v "$1" >/dev/null 2>&1; }

# append_once FILE LINE
append_once() {
    [ -f "$1" ] && while IFS= read -r line_ || [ -n "$line_" ]; do
        [ "$line_" = "$2" ] && return 0
    done <"$1"
    printf '%s\n' "$2" >>"$1"
}

# is_listed FILE NAME: is NAME the first field of a line of the colon-separated FILE?
is_listed() {
    [ -f "$1" ] || return 1
    while IFS=: read -r name_ rest_ || [ -n "$name_" ]; do
        [ "$name_" = "$2" ] && return 0
    done <"$1"
    return 1
}

# is_number_taken FILE NUMBER: is NUMBER the third field of a line?
is_number_taken() {
    [ -f "$1" ] || return 1
    while IFS=: read -r name_ pass_ number_ rest_ || [ -n "$name_" ]; do
        [ "$number_" = "$2" ] && return 0
    done <"$1"
    return 1
}

login_shell() { if [ -e /bin/bash ]; then echo /bin/bash; else echo /bin/sh; fi; }
