# Accounts, with the distribution's tools or without any.
user_exists() { is_listed /etc/passwd "$1" || { have getent && getent passwd "$1" >/dev/null 2>&1; }; }

free_number() {
    n=1000
    while is_number_taken /etc/passwd "$n" || is_number_taken /etc/group "$n"; do n=$((n + 1)); done
    echo "$n"
}

make_user_by_hand() {
    n=$(free_number)
    [ -f /etc/passwd ] || echo 'root:x:0:0:root:/root:/bin/sh' >/etc/passwd
    [ -f /etc/group ] || echo 'root:x:0:' >/etc/group
    if ! is_listed /etc/group "$1"; then printf '%s:x:%s:\n' "$1" "$n" >>/etc/group; fi
    gid=$n
    while IFS=: read -r name_ pass_ number_ rest_; do
        [ "$name_" = "$1" ] && gid=$number_
    done </etc/group
    printf '%s:x:%s:%s::/home/%s:%s\n' "$1" "$n" "$gid" "$1" "$(login_shell)" >>/etc/passwd
    if [ -f /etc/shadow ]; then printf '%s:!:19000:0:99999:7:::\n' "$1" >>/etc/shadow; fi
    mkdir -p "/home/$1"
    [ -d /etc/skel ] && cp -R /etc/skel/. "/home/$1/"
    chown -R "$n:$gid" "/home/$1"
    chmod 755 "/home/$1"
}

# ensure_user NAME: home directory, shell, no password.
ensure_user() {
    user_exists "$1" && return 0
    case $1 in
    . | .. | -* | *[:/[:space:]]*) fail "invalid user name '$1'" ;;
    esac
    mkdir -p /home
    if have useradd; then
        if is_listed /etc/group "$1"; then
            useradd -m -s "$(login_shell)" -g "$1" -- "$1"
        else
            useradd -m -s "$(login_shell)" -U -- "$1"
        fi
    elif have adduser && adduser --help 2>&1 | grep -q BusyBox && ! is_listed /etc/group "$1" && [ -f /etc/passwd ] &&
        [ -f /etc/group ]; then
        adduser -D -s "$(login_shell)" "$1"
    else
        case $1 in
        *[!a-zA-Z0-9._-]* | -* | '') fail "invalid user name '$1'" ;;
        esac
        make_user_by_hand "$1"
    fi || fail "user '$1' could not be created"
}

admin_group() {
    ADMIN_GROUP=
    [ -r /usr/local/share/e2b/distro.env ] && . /usr/local/share/e2b/distro.env
    echo "${ADMIN_GROUP:-sudo}"
}

delete_password() {
    [ -f /etc/shadow ] || return 0
    if have passwd && passwd -d "$1" >/dev/null 2>&1; then return 0; fi
    sed -i "s/^$1:[^:]*:/$1::/" /etc/shadow
    return 0
}

# is_member GROUP NAME: is NAME in the list of the group?
is_member() {
    while IFS=: read -r name_ pass_ number_ list_ || [ -n "$name_" ]; do
        [ "$name_" = "$1" ] || continue
        case ,$list_, in *,"$2",*) return 0 ;; esac
    done </etc/group
    return 1
}

# Not every busybox can add to a group.
join_group() {
    is_member "$2" "$1" && return 0
    if have usermod; then
        usermod -aG "$2" "$1"
    else
        sed -i -e "/^$2:/s/\$/,$1/" -e "/^$2:/s/:,/:/" /etc/group
    fi || fail "user '$1' could not be added to group '$2'"
}

# make_admin NAME: passwordless sudo.
make_admin() {
    group=$(admin_group)
    if is_listed /etc/group "$group"; then join_group "$1" "$group"; fi
    delete_password "$1"
    [ -e /etc/sudoers ] || { : >/etc/sudoers && chmod 440 /etc/sudoers; }
    append_once /etc/sudoers "$1 ALL=(ALL:ALL) NOPASSWD: ALL"
}

# name_of NUMBER: the account with that number.
name_of() {
    while IFS=: read -r name_ pass_ number_ rest_; do
        if [ "$number_" = "$1" ]; then
            echo "$name_"
            return 0
        fi
    done </etc/passwd
    return 1
}
