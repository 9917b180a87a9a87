# Which profile provisions this image? By the ID of os-release, else by its ID_LIKE, else none.
profile_of() {
    case $1 in
    debian | ubuntu) echo debian ;;
    fedora | centos | rocky | almalinux) echo rhel ;;
    arch | archarm) echo arch ;;
    alpine) echo alpine ;;
    esac
}

like_profile_of() {
    case $1 in
    rhel) echo rhel ;;
    *) profile_of "$1" ;;
    esac
}

# os_release KEY: its value. Read, not sourced: the file is the image's, and one that is no shell must not end this.
os_release() {
    for f_ in /etc/os-release /usr/lib/os-release; do
        [ -r "$f_" ] && [ ! -d "$f_" ] || continue
        while IFS='=' read -r key_ value_ || [ -n "$key_" ]; do
            [ "$key_" = "$1" ] || continue
            value_=${value_%"${value_##*[![:space:]]}"}
            case $value_ in
            \"*\") value_=${value_#\"} value_=${value_%\"} ;;
            \'*\') value_=${value_#\'} value_=${value_%\'} ;;
            esac
            printf '%s\n' "$value_"
            return 0
        done <"$f_"
        return 0
    done
}

set -f # no file names for what looks like a pattern
ID=$(os_release ID) ID_LIKE=$(os_release ID_LIKE)
profile=$(profile_of "$ID")
if [ -z "$profile" ]; then
    for id in $ID_LIKE; do
        profile=$(like_profile_of "$id")
        if [ -n "$profile" ]; then
            warn "no profile for '$ID'; provisioning it like '$id', as its ID_LIKE says"
            break
        fi
    done
fi
if [ -z "$profile" ]; then
    warn "no profile for this distribution${ID:+ ('$ID')}: the agent runs as PID 1 and no packages are installed"
    profile=none
fi
result profile "$profile"
result id "$ID"
