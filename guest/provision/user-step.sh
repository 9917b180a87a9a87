# The USER step (template-api 11.4). In front: NAME (the argument, expanded), ADMIN (yes or empty).
NAME=${NAME%%:*} # "user:group" of a Dockerfile: a login has its account's groups
case $NAME in
'') fail "the user name is empty" ;;
*[!0-9]*) ;;
*)
    number=$NAME
    NAME=$(name_of "$number") || fail "no account has the number $number"
    ;;
esac
ensure_user "$NAME"
if [ -n "$ADMIN" ]; then make_admin "$NAME"; fi
result user "$NAME"
