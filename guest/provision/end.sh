# Before the snapshot (template-api 13.4): settled packages, and the CA store packed for vmon-seed-certs.
store=/etc/ssl/certs
tar=/usr/local/share/e2b/ssl-certs.tar

if have dpkg && [ -s /var/lib/dpkg/status ]; then # not busybox's applet
    # A RUN may have left work to do; with nothing to do this is quick.
    dpkg --configure -a >/dev/null || fail "dpkg --configure -a failed; complete in a RUN what the steps install"
    broken=$(dpkg --audit)
    if [ -n "$broken" ]; then
        printf '%s\n' "$broken"
        # shellcheck disable=SC2046 # one word a package
        set -- $(printf '%s\n' "$broken" | sed -n 's/^ \([^ ]*\).*/\1/p')
        fail "packages are not fully installed: $*; complete in a RUN what the steps install"
    fi
fi
if [ -d "$store" ] && have tar; then
    if have update-ca-certificates && [ -d /usr/local/share/ca-certificates ] &&
        [ -n "$(find /usr/local/share/ca-certificates -newer "$store/ca-certificates.crt" 2>/dev/null)" ]; then
        update-ca-certificates ||
            fail "update-ca-certificates failed; check the files that steps put into /usr/local/share/ca-certificates"
    fi
    if [ ! -s "$tar" ] || [ "$store" -nt "$tar" ] || [ "$store/ca-certificates.crt" -nt "$tar" ]; then
        mkdir -p /usr/local/share/e2b
        tar -cf "$tar.new" -C /etc/ssl certs && mv "$tar.new" "$tar" || fail "the CA store could not be packed"
    fi
fi
sync
