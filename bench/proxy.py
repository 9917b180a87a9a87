"""bench/run proxy: the traffic proxy beside nginx as a plain reverse proxy to the same guest port.

A small server (bench/answer.c) runs in one sandbox. nginx runs in the sandbox's network namespace (it inherits its listening socket from
outside of it), so that both go the same last hop; it keeps its connections to the guest, as vmon does. In one run, alternating: requests a second of a small file (wrk), bytes a
second of a large one (curl), the time of one small request on a kept connection, also without any proxy, and the CPU time
that each proxy takes for a request and for a megabyte.
"""
import glob, http.client, json, os, re, shutil, socket, statistics, subprocess, sys, tempfile, time

from client import call, data, percentile, port, report, root, runs

GUEST = '169.254.0.21'
GUEST_PORT = 8000
LARGE_MB = 32
seconds = int(os.environ.get('VMON_BENCH_SECONDS', '3'))
rounds = int(os.environ.get('VMON_BENCH_ROUNDS', '5'))

# One request for each line read, on one kept connection; answers its milliseconds.
CLIENT = """
import http.client, sys, time
connection = http.client.HTTPConnection(sys.argv[1], int(sys.argv[2]), timeout=60)
headers = dict(h.split('=', 1) for h in sys.argv[3:])
for line in sys.stdin:
    began = time.perf_counter()
    connection.request('GET', '/small', headers=headers)
    response = connection.getresponse()
    assert response.status == 200 and len(response.read()) == 100, response.status
    print((time.perf_counter() - began) * 1000, flush=True)
"""


def guest(sandbox, command):
    """Starts `command` as root and waits for its end."""
    message = json.dumps({'process': {'cmd': '/bin/sh', 'args': ['-c', command]}, 'stdin': False}).encode()
    headers = {'E2b-Sandbox-Id': sandbox['sandboxID'], 'E2b-Sandbox-Port': '49983', 'Content-Type': 'application/connect+json',
               'Connect-Protocol-Version': '1', 'Authorization': 'Basic cm9vdDo=', 'X-Access-Token': sandbox.get('envdAccessToken') or ''}
    status, payload = call('POST', '/process.Process/Start', b'\0' + len(message).to_bytes(4, 'big') + message, headers)
    assert status == 200 and b'"exited":true' in payload, (status, payload)


def upload(sandbox, path, content):
    status, payload = call('POST', f'/files?path={path}&username=root', content, {
        'E2b-Sandbox-Id': sandbox['sandboxID'], 'E2b-Sandbox-Port': '49983', 'Content-Type': 'application/octet-stream',
        'X-Access-Token': sandbox.get('envdAccessToken') or ''})
    assert status == 200, (status, payload)


def process_of(*words):
    for cmdline in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            if all(w.encode() in open(cmdline, 'rb').read() for w in words):
                return int(cmdline.split('/')[2])
        except OSError:
            continue
    raise SystemExit(f'no process {words}')


def start_nginx(directory, namespace):
    listener = socket.create_server(('127.0.0.1', 0))
    own = listener.getsockname()[1]
    config = f"""user root; daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000000; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;
fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
upstream guest {{ server {GUEST}:{GUEST_PORT}; keepalive 64; }}
server {{ listen 127.0.0.1:{own}; location / {{ proxy_pass http://guest; proxy_max_temp_file_size 0; proxy_http_version 1.1; proxy_set_header Connection ''; }} }} }}"""
    with open(os.path.join(directory, 'nginx.conf'), 'w') as f:
        f.write(config)
    process = subprocess.Popen(['nsenter', f'--net={namespace}', 'nginx', '-c', os.path.join(directory, 'nginx.conf')],
                               env={**os.environ, 'NGINX': f'{listener.fileno()};'}, pass_fds=[listener.fileno()])
    listener.close()
    return process, own


def cpu_s(pid):
    """CPU time of a process and its children that run; vmon's children are machines' supervisors, in sessions of their own."""
    ticks = 0
    for p in (pid, *open(f'/proc/{pid}/task/{pid}/children').read().split()):
        fields = open(f'/proc/{p}/stat').read().rsplit(')', 1)[1].split()
        if int(p) == pid or fields[1] == str(pid) and fields[3] == open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[3]:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf('SC_CLK_TCK')


def requests_per_s(at, headers):
    out = subprocess.run(['wrk', '-t1', '-c16', f'-d{seconds}s', '--timeout', '30s', *[w for h in headers for w in ('-H', h.replace('=', ': ', 1))],
                          f'http://127.0.0.1:{at}/small'], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert 'Non-2xx' not in out and 'Socket errors' not in out, out
    return float(re.search(r'Requests/sec:\s+([\d.]+)', out)[1]), int(re.search(r'(\d+) requests in', out)[1])


def mb_per_s(at, headers):
    out = subprocess.run(['curl', '-sS', '-o', '/dev/null', '-w', '%{http_code} %{size_download} %{time_total}',
                          *[w for h in headers for w in ('-H', h.replace('=', ': ', 1))], f'http://127.0.0.1:{at}/large'],
                         check=True, stdout=subprocess.PIPE, text=True).stdout
    status, size, took = out.split()
    assert status == '200' and int(size) == LARGE_MB << 20, out
    return LARGE_MB / float(took)


class Asker:
    def __init__(self, host, at, headers, namespace=None):
        words = [sys.executable, '-c', CLIENT, host, str(at), *headers]
        self.process = subprocess.Popen(['nsenter', f'--net={namespace}', *words] if namespace else words, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ms(self):
        self.process.stdin.write('\n')
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    status, payload = call('POST', '/sandboxes', {'templateID': 'busybox', 'timeout': 3600})
    assert status == 201, payload
    sandbox = json.loads(payload)
    directory = tempfile.mkdtemp(prefix='vmon-bench-proxy-')
    nginx = None
    try:
        program = os.path.join(directory, 'answer')
        subprocess.run(['cc', '-O2', '-static', '-o', program, os.path.join(root, 'bench/answer.c')], check=True)
        upload(sandbox, '/tmp/answer', open(program, 'rb').read())
        guest(sandbox, f'chmod 755 /tmp/answer && /tmp/answer {GUEST_PORT} {LARGE_MB}')
        namespace = f'/proc/{process_of("qemu", sandbox["sandboxID"])}/ns/net'
        nginx, nginx_port = start_nginx(directory, namespace)
        serve = int(open(os.path.join(os.path.dirname(data), 'serve.pid')).read())
        via = [f'E2b-Sandbox-Id={sandbox["sandboxID"]}', f'E2b-Sandbox-Port={GUEST_PORT}']
        proxies = {'vmon': (port, via, serve), 'nginx': (nginx_port, [], nginx.pid)}
        askers = {name: Asker('127.0.0.1', at, headers) for name, (at, headers, _) in proxies.items()}
        askers['direct'] = Asker(GUEST, GUEST_PORT, [], namespace)
        measured = {}
        for i in range(rounds + 1):  # the first warms
            for name, (at, headers, pid) in proxies.items():
                before = cpu_s(pid)
                rate, count = requests_per_s(at, headers)
                between = cpu_s(pid)
                speed = mb_per_s(at, headers)
                after = cpu_s(pid)
                if i > 0:
                    for what, value in (('requests_per_s', rate), ('cpu_request_us', (between - before) / count * 1e6),
                                        ('mb_per_s', speed), ('cpu_mb_ms', (after - between) / LARGE_MB * 1e3)):
                        measured.setdefault(f'{name}_{what}', []).append(value)
        latency = {name: [] for name in askers}
        for i in range(runs * 10 + 10):
            for name, asker in askers.items():
                took = asker.ms()
                if i >= 10:
                    latency[name].append(took)
        metrics = {what: round(statistics.median(values), 2) for what, values in measured.items()}
        for name, values in latency.items():
            metrics[f'{name}_request_p50_ms'] = round(percentile(values, 50), 2)
            metrics[f'{name}_request_p99_ms'] = round(percentile(values, 99), 2)
        metrics['requests_to_nginx_ratio'] = round(metrics['vmon_requests_per_s'] / metrics['nginx_requests_per_s'], 2)
        metrics['bytes_to_nginx_ratio'] = round(metrics['vmon_mb_per_s'] / metrics['nginx_mb_per_s'], 2)
        metrics['added_p50_ms'] = round(metrics['vmon_request_p50_ms'] - metrics['direct_request_p50_ms'], 2)
        for asker in askers.values():
            asker.close()
        status, payload = call('GET', '/templates')
        build = next(t for t in json.loads(payload) if 'busybox' in t['aliases'])['buildID']
        report('proxy', metrics, os.path.join(data, 'builds', build))
    finally:
        if nginx:
            nginx.terminate()
            nginx.wait()
        call('DELETE', '/sandboxes/' + sandbox['sandboxID'])
        shutil.rmtree(directory)


main()
