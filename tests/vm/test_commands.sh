#!/bin/bash
# usage: test_commands.sh VMON
# vmon kit and vmon doctor from outside: exit statuses, messages with a mend, options from the environment.
vmon=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
check() { # NAME WANTED-STATUS TEXT COMMAND...
        local out status
        out=$("${@:4}" 2>&1); status=$?
        if [ $status = "$2" ] && [[ $out == *"$3"* ]]; then echo "ok   $1"; else echo "FAIL $1: status $status: $out"; failed=1; fi
}
check "an unknown architecture" 1 "x86_64 and aarch64" "$vmon" kit --kit-dir "$tmp/kit" --arch riscv64 --agent /bin/true
check "an agent that is not there" 1 "build it, or give --agent" "$vmon" kit --kit-dir "$tmp/kit" --agent "$tmp/none"
check "an unknown option" 2 "unrecognized option" "$vmon" kit --nonsense
check "a stray argument" 2 "unexpected argument" "$vmon" kit stray
check "an option from the environment" 1 "riscv64" env VMON_ARCH=riscv64 VMON_KIT_DIR="$tmp/kit" "$vmon" kit --agent /bin/true
check "the command line beats the environment" 1 "\"sparc\"" env VMON_ARCH=riscv64 "$vmon" kit --kit-dir "$tmp/kit" --arch sparc --agent /bin/true
check "doctor without a kit names the mend" 1 "run vmon kit" "$vmon" doctor --data-dir "$tmp/data"
check "doctor's JSON" 0 "" bash -c "'$vmon' doctor --json --data-dir '$tmp/data' | python3 -c '
import json, sys
d = json.load(sys.stdin)
assert d[\"usable\"] is False
assert all(f[\"state\"] in (\"ok\", \"warn\", \"fail\") and f[\"name\"] and f[\"detail\"] for f in d[\"findings\"])
assert all(f[\"mend\"] for f in d[\"findings\"] if f[\"state\"] == \"fail\")
'"
[ ! -e "$tmp/data" ] || { echo "FAIL doctor made a data directory"; failed=1; }
check "an unknown command" 2 "usage: vmon" "$vmon" nonsense
exit $failed
