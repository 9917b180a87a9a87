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

ID='' ID_LIKE=''
for f in /etc/os-release /usr/lib/os-release; do
    if [ -r "$f" ]; then
        . "$f" || :
        break
    fi
done
profile=$(profile_of "$ID")
if [ -z "$profile" ]; then
    for id in $ID $ID_LIKE; do
        profile=$(like_profile_of "$id")
        if [ -n "$profile" ]; then
            warn "no profile for '$ID'; provisioning it like '$id'"
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
