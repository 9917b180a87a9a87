# The WORKDIR step (template-api 11.3). In front: DIR (the argument, expanded), BASE, OWNER.
case $DIR in
/*) ;;
*) DIR=${BASE%/}/$DIR ;;
esac

# Made for OWNER, whose group has the same name or is the account's first.
make_directory() {
    why=$(mkdir "$1" 2>&1) || fail "directory '$DIR' could not be created: ${why#mkdir: }"
    [ "$OWNER" = root ] && return 0
    if is_listed /etc/group "$OWNER"; then group=$OWNER; else group=$(id -g -- "$OWNER"); fi
    why=$(chown -h "$OWNER:$group" "$1" 2>&1) || fail "directory '$1' could not be given to '$OWNER': ${why#chown: }"
}

# Component by component: with ".." in it, what is new need not lie below one directory.
at='' rest=$DIR/
while [ -n "$rest" ]; do
    component=${rest%%/*}
    rest=${rest#*/}
    [ -n "$component" ] || continue
    at=$at/$component
    [ -d "$at" ] || make_directory "$at"
done
cd -- "$DIR" || fail "cannot change to '$DIR'"
result workdir "$(pwd)"
