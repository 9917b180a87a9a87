# The last changes to every template (template-api 13.1). In front: TEMPLATE_ID, BUILD_ID.
printf 'ENV_ID=%s\nTEMPLATE_ID=%s\nBUILD_ID=%s\n' "$TEMPLATE_ID" "$TEMPLATE_ID" "$BUILD_ID" >/.e2b ||
    fail "/.e2b could not be written"
ensure_user user
if [ -d /etc/skel ] && [ ! -L /home ] && [ ! -L /home/user ]; then
    mkdir -p /home/user
    for f in /etc/skel/* /etc/skel/.[!.]* /etc/skel/..?*; do
        if [ -e "$f" ] && [ ! -e "/home/user/${f##*/}" ] && [ ! -L "/home/user/${f##*/}" ]; then
            cp -R "$f" /home/user/
        fi
    done
fi
make_admin user
mkdir -p /home/user /usr/local /code
chown -R -h user:user /home/user || fail "/home/user could not be given to user"
chmod -R 777 /usr/local || fail "/usr/local could not be opened"
chmod 777 /code
