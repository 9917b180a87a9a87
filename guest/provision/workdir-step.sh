# The WORKDIR step (template-api 11.3). In front: DIR (the argument, expanded), BASE, OWNER.
case $DIR in
/*) ;;
*) DIR=${BASE%/}/$DIR ;;
esac
top=
at=$DIR
while [ -n "$at" ] && [ "$at" != / ]; do
    if [ -e "$at" ] || [ -L "$at" ]; then break; fi
    top=$at
    at=${at%"${at##*[!/]}"}
    at=${at%/*}
done
mkdir -p -- "$DIR" || fail "directory '$DIR' could not be created"
if [ -n "$top" ] && [ "$OWNER" != root ]; then
    if is_listed /etc/group "$OWNER"; then group=$OWNER; else group=$(id -g -- "$OWNER"); fi
    chown -R -h "$OWNER:$group" "$top" || fail "directory '$top' could not be given to '$OWNER'"
fi
cd -- "$DIR" || fail "cannot change to '$DIR'"
result workdir "$(pwd)"
