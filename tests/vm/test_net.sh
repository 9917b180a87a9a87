#!/bin/bash
# shellcheck disable=SC2154 # NAME_in, NAME_pid and NAME_guest are set by eval
# usage: test_net.sh NET_HELPER VMON_EGRESS
# The network `nat` with everything real but the guest: isolation, name resolution, clean-up. Runs in namespaces of
# its own, the "host" included, so that this machine's network is not touched. Root; status 77 = skipped.
set -u
helper=$1 egress=$2
[ "$(id -u)" = 0 ] || { echo "skipped: needs root"; exit 77; }
[ -c /dev/net/tun ] || { echo "skipped: no /dev/net/tun"; exit 77; }
for tool in nft ip nsenter python3; do command -v $tool >/dev/null || { echo "skipped: no $tool"; exit 77; }; done
if [ "${IN_NAMESPACE:-}" != 1 ]; then
        exec env IN_NAMESPACE=1 unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
chmod 711 "$tmp"
cp "$helper" "$egress" "$tmp"
helper=$tmp/$(basename "$helper")
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
names = {b"a.example": ["198.51.100.2"], b"www.b.example": ["198.51.100.2"], b"private.example": ["10.99.0.2"], b"meta.example": ["169.254.169.254"],
         b"mixed.example": ["10.99.0.2", "127.0.0.1", "198.51.100.2"], b"dead.example": ["198.51.100.99", "198.51.100.2"]}
def answer(d):  # to a question for an address
    end = d.index(b"\0", 12); labels, at = [], 12
    while at < end: labels.append(d[at + 1:at + 1 + d[at]]); at += 1 + d[at]
    found = names.get(b".".join(labels).lower())
    reply = d[:2] + (b"\x81\x80" if found else b"\x81\x83") + b"\0\1" + bytes([0, len(found or [])]) + b"\0\0\0\0" + d[12:end + 5]
    return reply + b"".join(b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(a) for a in found or [])
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 53))
    while True:
        d, a = s.recvfrom(512); s.sendto(b"dns " + d if d == b"hello" else answer(d), a)
def web(c):  # tells which Host it saw, and how many bytes came after the head until the other side had sent all
    head = b""
    while b"\r\n\r\n" not in head:
        d = c.recv(65536)
        if not d: return
        head += d
    head, rest = head.split(b"\r\n\r\n", 1); count = len(rest); c.sendall(b"head;")
    while (d := c.recv(65536)): count += len(d)
    c.sendall(head.split(b"Host: ")[1].split(b"\r\n")[0] + b" %d" % count); c.close()
def tls(c):
    c.recv(65536); c.sendall(b"tls"); c.close()
def serve(port, handle):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("0.0.0.0", port)); s.listen(64)
    while True: threading.Thread(target=handle, args=[s.accept()[0]], daemon=True).start()
threading.Thread(target=serve, args=(8080, web), daemon=True).start()
threading.Thread(target=serve, args=(8443, tls), daemon=True).start()
threading.Thread(target=udp, daemon=True).start(); tcp()
P
cat >"$tmp/ask.py" <<'P'
import socket, sys
kind, host, port, want = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
def connect():
    s = socket.create_connection((host, port), 1.5); s.settimeout(30); return s
def all_of(s):
    try: s.shutdown(socket.SHUT_WR)
    except OSError: pass  # reset already: reading says so
    got = b""
    while (d := s.recv(65536)): got += d
    return got.decode()
if kind.startswith("http="):  # http=NAME[,BYTES]
    name, _, size = kind[5:].partition(",")
    s = connect()
    s.sendall(b"POST / HTTP/1.1\r\nHost: "); s.sendall(name.encode() + b"\r\n\r\n" + b"x" * int(size or 0)); got = all_of(s)
elif kind.startswith("tls="):
    import ssl
    out = ssl.MemoryBIO(); c = ssl.create_default_context(); t = c.wrap_bio(ssl.MemoryBIO(), out, server_hostname=kind[4:])
    try: t.do_handshake()
    except ssl.SSLWantReadError: pass
    s = connect(); s.sendall(out.read()); got = all_of(s)
elif kind == "raw":
    s = connect(); s.sendall(b"SSH-2.0-x\r\n"); got = all_of(s)
elif kind == "wait":  # opened before the line on standard input, used after it
    s = connect(); s.sendall(b"POST / HTTP/1.1\r\nHost: a.example\r\n\r\n"); s.recv(5, socket.MSG_WAITALL)
    print("open", flush=True); sys.stdin.readline(); s.sendall(b"more"); got = all_of(s)
elif kind == "tcp":
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
# By name (egress/egress.h). The address that is dialled does not count: nothing answers at 203.0.113.9.
expect "a domain is allowed" 0 set_rules d deny=0.0.0.0/0 domain=A.example 'domain=*.b.example' domain=private.example domain=meta.example domain=mixed.example domain=dead.example domain=none.example
expect "HTTP to it, whatever address was dialled" 0 ask $d_guest http=a.example 203.0.113.9 8080 "head;a.example 0"
expect "TLS to it" 0 ask $d_guest tls=a.example 203.0.113.9 8443 tls
expect "a wildcard's name" 0 ask $d_guest http=www.b.example 203.0.113.9 8080 "head;www.b.example 0"
expect "64 MiB, and the end of what is sent" 0 ask $d_guest http=a.example,67108864 203.0.113.9 8080 "head;a.example 67108864"
expect "another name is refused" 1 ask $d_guest http=c.example 198.51.100.2 8080 x
expect "with a reset, not with silence" 0 sh -c "nsenter -t $d_guest -n python3 '$tmp/ask.py' http=c.example 198.51.100.2 8080 x 2>&1 | grep ConnectionResetError"
expect "TLS with another name is refused" 1 ask $d_guest tls=c.example 198.51.100.2 8443 tls
expect "a name below it is another" 1 ask $d_guest http=www.a.example 198.51.100.2 8080 x
expect "the wildcard's own name is another" 1 ask $d_guest http=b.example 198.51.100.2 8080 x
expect "an address is no name" 1 ask $d_guest http=198.51.100.2 198.51.100.2 8080 x
expect "other protocols have no name" 1 ask $d_guest raw 198.51.100.2 8080 x
expect "an allowed name with a private address is refused" 1 ask $d_guest http=private.example 198.51.100.2 8080 x
expect "and one with that of a metadata service" 1 ask $d_guest http=meta.example 198.51.100.2 8080 x
expect "of several addresses the private ones are left out" 0 ask $d_guest http=mixed.example 203.0.113.9 8080 "head;mixed.example 0"
expect "and a dead one is passed over" 0 ask $d_guest http=dead.example 203.0.113.9 8080 "head;dead.example 0"
expect "a name that does not resolve is refused" 1 ask $d_guest http=none.example 198.51.100.2 8080 x
expect "a private address is dropped before anybody reads a name" 1 ask $d_guest http=a.example 10.99.0.2 8080 x
expect "the listener itself is not reached" 1 ask $d_guest http=a.example 169.254.0.22 "$(nsenter -t $d_pid -n ss -Hltn | awk '{sub(/.*:/, "", $4); print $4}')" x
expect "names resolve" 0 ask $d_guest udp 169.254.0.22 53 "dns hello"
expect "UDP is denied" 1 ask $d_guest udp 198.51.100.2 5353 x
expect "who reads the names is a user of its own" 0 sh -c "for p in /proc/[0-9]*; do [ \"\$(cat \$p/comm 2>/dev/null)\" = vmon-egress ] && grep -q '^Uid:.1010008' \$p/status && grep -q '^CapEff:.0000000000000000' \$p/status && grep -q '^NoNewPrivs:.1' \$p/status && exit 0; done; exit 1"
expect "who took it over would not reach private ranges" 1 ask $d_pid tcp 10.99.0.2 80 x
mkfifo "$tmp/go" "$tmp/opened"
ask $d_guest wait 203.0.113.9 8080 "a.example 4" <"$tmp/go" >"$tmp/opened" & waiting=$!
exec {go}>"$tmp/go"; exec {opened}<"$tmp/opened"
read -r _ <&$opened
expect "names are replaced" 0 set_rules d deny=0.0.0.0/0 domain=www.b.example allow=198.51.100.2
expect "by address and by name at once: an address that is allowed needs no name" 0 ask $d_guest tcp 198.51.100.2 80 198.51.100.1
expect "the former name is refused" 1 ask $d_guest http=a.example 203.0.113.9 8080 x
echo >&$go
expect "what was open before goes on" 0 wait $waiting
expect "any name" 0 set_rules d deny=0.0.0.0/0 'domain=*'
expect "is let through" 0 ask $d_guest http=a.example 203.0.113.9 8080 "head;a.example 0"
expect "private addresses never" 1 ask $d_guest http=private.example 203.0.113.9 8080 x
expect "what is no domain is refused" 1 set_rules d deny=0.0.0.0/0 "domain=a;flush"
expect "and the former rules hold" 0 ask $d_guest http=a.example 203.0.113.9 8080 "head;a.example 0"
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
