#!/bin/sh
# embed.sh FILE…: C source that holds each file as a string named after it, `guest_<name>`, "-" and "." as "_", and its
# declaration in the header vmon includes. Used by meson.
set -eu
echo '/* Generated from guest/provision. */'
for f in "$@"; do
    name=$(basename "$f" .sh | tr '.-' '__')
    printf 'extern const char guest_%s[];\nconst char guest_%s[] = {' "$name" "$name"
    od -An -v -tu1 "$f" | sed -e 's/^ *//' -e 's/  */,/g' -e 's/$/,/'
    echo '0};'
done
