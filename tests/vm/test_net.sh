#!/bin/bash
# shellcheck disable=SC2154 # NAME_in, NAME_pid and NAME_guest are set by eval
# usage: test_net.sh NET_HELPER
# The network `nat` with everything real but the guest: isolation, name resolution, clean-up. Runs in namespaces of
# its own, the "host" included, so that this machine's network is not touched. Root; status 77 = skipped.
set -u
helper=$1
[ "$(id -u)" = 0 ] || { echo "skipped: needs root"; exit 77; }
[ -c /dev/net/tun ] || { echo "skipped: no /dev/net/tun"; exit 77; }
for tool in nft ip nsenter python3; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
if [ "${IN_NAMESPACE:-}" != 1 ]; then
        exec env IN_NAMESPACE=1 unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
ok() { echo "ok   $1"; }
fail() { echo "FAIL $1"; failed=1; }
expect() { # NAME WANTED-STATUS COMMAND...
        local name=$1 wanted=$2; shift 2
        if "$@" >"$tmp/out" 2>&1; then status=0; else status=1; fi
        if [ $status = "$wanted" ]; then ok "$name"; else fail "$name: $(cat "$tmp/out")"; fi
}

# The world: 198.51.100.2 and, as a private neighbour, 10.99.0.2; both answer on TCP 80 and UDP 53 with what they see.
ip link set lo up
unshare --net sleep 1000 & world=$!
until [ "$(readlink /proc/$world/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add w0 type veth peer name w1 netns $world
ip addr add 198.51.100.1/24 dev w0; ip addr add 10.99.0.1/24 dev w0; ip link set w0 up
in_world() { nsenter -t $world -n "$@"; }
in_world ip link set lo up
in_world ip addr add 198.51.100.2/24 dev w1; in_world ip addr add 10.99.0.2/24 dev w1; in_world ip link set w1 up
cat >"$tmp/server.py" <<'P'
import socket, sys, threading
def tcp():
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("0.0.0.0", 80)); s.listen(16)
    print("ready", flush=True)
    while True:
        c, a = s.accept(); c.sendall(a[0].encode()); c.close()
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 53))
    while True:
        d, a = s.recvfrom(512); s.sendto(b"dns " + d, a)
threading.Thread(target=udp, daemon=True).start(); tcp()
P
cat >"$tmp/ask.py" <<'P'
import socket, sys
kind, host, port, want = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if kind == "tcp":
    s = socket.create_connection((host, port), 1.5); got = s.recv(100).decode()
else:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1.5)
    s.sendto(b"hello", (host, port)); got = s.recv(100).decode()
print(got); sys.exit(0 if got == want else 1)
P
mkfifo "$tmp/ready"
in_world python3 "$tmp/server.py" >"$tmp/ready" & read -r _ <"$tmp/ready"
python3 "$tmp/server.py" >"$tmp/ready" & read -r _ <"$tmp/ready"   # services of the host itself
echo "nameserver 127.0.0.53
nameserver 198.51.100.2" >"$tmp/resolv.conf"
mount --bind "$tmp/resolv.conf" /etc/resolv.conf

start() { # NAME SLOT [allow-private] [deny=CIDR]… [allow=CIDR]…
        mkfifo "$tmp/$1.in" "$tmp/$1.out"
        "$helper" "${@:2}" <"$tmp/$1.in" >"$tmp/$1.out" &
        exec {fd}>"$tmp/$1.in"
        eval "$1_in=$fd"
        exec {out}<"$tmp/$1.out"
        eval "$1_out=$out"
        read -r _ pid _ guest _ us <&$out || { echo "FAIL helper for slot $2"; exit 1; }
        eval "$1_pid=$pid $1_guest=$guest"
        echo "     network of slot $2 in $us us"
        rm "$tmp/$1.in" "$tmp/$1.out"
}
ask() { nsenter -t "$1" -n python3 "$tmp/ask.py" "${@:2}"; }

start a 5
start b 6
start c 7 allow-private
expect "the world sees the host's address" 0 ask $a_guest tcp 198.51.100.2 80 198.51.100.1
expect "two guests with the same address at once" 0 ask $b_guest tcp 198.51.100.2 80 198.51.100.1
expect "names are asked at the gateway" 0 ask $a_guest udp 169.254.0.22 53 "dns hello"
expect "a private range is denied" 1 ask $a_guest tcp 10.99.0.2 80 10.99.0.1
expect "a private range is reached when allowed" 0 ask $c_guest tcp 10.99.0.2 80 10.99.0.1
expect "the host's public address is denied" 1 ask $a_guest tcp 198.51.100.1 80 x
expect "the host's end of the link is denied" 1 ask $a_guest tcp 10.200.0.21 80 x
expect "the host is denied to a guest with private ranges too" 1 ask $c_guest tcp 10.200.0.29 80 x
expect "another guest's link is denied" 1 ask $c_guest tcp 10.200.0.22 80 x
expect "the namespace offers nothing at the gateway" 1 ask $a_guest tcp 169.254.0.22 80 x
nsenter -t $a_guest -n python3 "$tmp/server.py" >"$tmp/ready" & read -r _ <"$tmp/ready"
expect "the shim reaches a guest's port" 0 ask $a_pid tcp 169.254.0.21 80 169.254.0.22
expect "the world does not reach a guest" 1 in_world python3 "$tmp/ask.py" tcp 10.200.0.22 80 x
expect "the host's table survives a second setup" 0 sh -c 'nft list table ip vmon | grep -q masquerade'
expect "the gateway's MAC is fixed" 0 sh -c "nsenter -t $a_pid -n ip link show tap0 | grep -q 02:fc:00:00:00:06"
expect "the host's end says whose it is" 0 sh -c 'ip link show vmon5 | grep -q "alias /data/helper$"'
expect "no IPv6 on the host's end" 1 sh -c 'ip -6 addr show dev vmon5 | grep -q inet6'

# What a sandbox may reach (sandbox-api 13.2).
set_rules() { # NAME RULE…: what the helper says
        local in=$1_in out=$1_out answer
        echo "set ${*:2}" >&"${!in}"
        read -r answer <&"${!out}"
        [ "$answer" = set ] || { echo "     $answer"; return 1; }
}
start d 8 deny=0.0.0.0/0
expect "everything is denied" 1 ask $d_guest tcp 198.51.100.2 80 198.51.100.1
expect "names too: they would carry data out" 1 ask $d_guest udp 169.254.0.22 53 "dns hello"
expect "the shim still reaches the guest's port" 0 sh -c "nsenter -t $d_guest -n python3 '$tmp/server.py' >'$tmp/ready' & read -r _ <'$tmp/ready'; nsenter -t $d_pid -n python3 '$tmp/ask.py' tcp 169.254.0.21 80 169.254.0.22"
expect "rules change while it runs" 0 set_rules d deny=0.0.0.0/0 allow=198.51.100.2
expect "allow beats deny" 0 ask $d_guest tcp 198.51.100.2 80 198.51.100.1
expect "ranges that overlap" 0 set_rules d allow=198.51.0.0/16 allow=198.51.100.2 deny=198.51.100.0/24 deny=198.51.100.7
expect "an allowed range holds a denied one" 0 ask $d_guest tcp 198.51.100.2 80 198.51.100.1
expect "a denied address" 0 set_rules d deny=198.51.100.2
expect "is not reached" 1 ask $d_guest tcp 198.51.100.2 80 198.51.100.1
expect "names still resolve" 0 ask $d_guest udp 169.254.0.22 53 "dns hello"
expect "an allowed private address" 0 set_rules d allow=10.99.0.2
expect "stays denied" 1 ask $d_guest tcp 10.99.0.2 80 10.99.0.1
expect "what is no address is refused" 1 set_rules d "allow=1.2.3.4;flush"
expect "no rules again" 0 set_rules d
expect "and everything is open" 0 ask $d_guest tcp 198.51.100.2 80 198.51.100.1
kill -9 $d_pid

# The kernel removes a namespace's links a moment after its last process: wait for the event, at most 10 s.
gone() { for _ in $(seq 200); do [ ! -e /sys/class/net/$1 ] && ! ip link show "$1" >/dev/null 2>&1 && return 0; sleep 0.05; done; return 1; }
kill -9 $a_pid
start a2 5
expect "a slot is reused at once after kill -9" 0 ask $a2_guest tcp 198.51.100.2 80 198.51.100.1
kill -9 $a2_pid
expect "kill -9 leaves no link" 0 gone vmon5
echo end >&$b_in
wait $b_pid
expect "net_end leaves no link" 1 ip link show vmon6
kill $c_pid
expect "a plain kill leaves no link" 0 gone vmon7
kill $world
exit $failed
