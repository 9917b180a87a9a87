"""bench/run api: what the API answers with 64 connections (wrk), beside nginx serving static files of the same sizes in the same run.

No virtual machine runs. Measured are a look-up of an alias and a poll of a build's status, with a handful of records in the store and
again with 10,000 templates of ten builds each; and the resident memory of an idle server, both just started and with the full store.
nginx gets a file as large as the answer. Each figure is the median of the rounds, which alternate between the programs, so that other
load on the machine meets both.
environment: VMON_BENCH_SECONDS (of one wrk run, 5), VMON_BENCH_ROUNDS (3)
"""
import json, os, platform, re, shutil, sqlite3, statistics, subprocess, sys, time

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(root, 'tests/api'))
from server import Server, free_port  # noqa: E402

seconds = int(os.environ.get('VMON_BENCH_SECONDS', '5'))
rounds = int(os.environ.get('VMON_BENCH_ROUNDS', '3'))
TEMPLATES, BUILDS = 10000, 10
CONNECTIONS = 64


class Nginx:
    """Serves DIR on a free loopback port."""

    def __init__(self, directory):
        self.port, self.directory = free_port(), directory
        os.makedirs(os.path.join(directory, 'files'))
        os.chmod(os.path.dirname(directory), 0o755)
        config = os.path.join(directory, 'nginx.conf')
        with open(config, 'w') as f:
            f.write(f'''daemon off; master_process on; worker_processes auto; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; open_file_cache max=100; keepalive_requests 100000000; keepalive_timeout 600;
  client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d;
  scgi_temp_path {directory}/e;
  server {{ listen 127.0.0.1:{self.port}; default_type application/json; location / {{ root {directory}/files; }} }}
}}
''')
        self.process = subprocess.Popen(['nginx', '-c', config], stdin=subprocess.DEVNULL)

    def add(self, name, content):
        with open(os.path.join(self.directory, 'files', name), 'wb') as f:
            f.write(content)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def in_ms(text):
    number, unit = re.fullmatch(r'([\d.]+)(us|ms|s|m)', text).groups()
    return float(number) * {'us': 0.001, 'ms': 1, 's': 1000, 'm': 60000}[unit]


def cpu_ms(pid):
    """CPU time of a process and its children that still run."""
    total = 0
    for stat in [f'/proc/{pid}/stat', *(f'/proc/{c}/stat' for c in open(f'/proc/{pid}/task/{pid}/children').read().split())]:
        fields = open(stat).read().rsplit(')', 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total * 1000 / os.sysconf('SC_CLK_TCK')


def wrk(port, path, pid, key=None):
    """Requests a second, the 99th percentile in ms, and the server's CPU time a request in ms; anything but a 2xx ends the benchmark."""
    before = cpu_ms(pid)
    out = subprocess.run(['wrk', '-t', '2', '-c', str(CONNECTIONS), '-d', f'{seconds}s', '--latency',
                          *(['-H', f'X-API-Key: {key}'] if key else []), f'http://127.0.0.1:{port}{path}'],
                         check=True, capture_output=True, text=True).stdout
    assert 'Non-2xx' not in out and 'Socket errors' not in out, out
    return (float(re.search(r'Requests/sec:\s+([\d.]+)', out).group(1)),
            in_ms(re.search(r'(?m)^\s+99%\s+(\S+)', out).group(1)),
            (cpu_ms(pid) - before) / int(re.search(r'(\d+) requests in', out).group(1)))


def resident_mib(pid):
    return int(re.search(r'VmRSS:\s+(\d+)', open(f'/proc/{pid}/status').read()).group(1)) / 1024


def random_id(i):
    return ''.join('abcdefghijklmnopqrstuvwxyz0123456789'[(i // 36 ** n) % 36] for n in range(20))


def fill(server, template_id):
    """Copies a template with a ready build 10,000 times, ten builds each: rows as src/store/internal.h describes them."""
    db = sqlite3.connect(os.path.join(server.data, 'vmon.db'), timeout=60)
    get = lambda key: json.loads(db.execute('SELECT value FROM kv WHERE key = ?', (key,)).fetchone()[0])
    template = get(f'template/{template_id}')
    build = get(f'build/{template["latest_ready"]}')
    slug = 'default'

    def rows():
        for i in range(TEMPLATES):
            tid, created = random_id(i + 10**15), template['created'] + i * 1000
            age = f'{(1 << 63) - 1 - created:016x}'
            ids = [f'{i:08x}-{n:04x}-4000-8000-{i:012x}' for n in range(BUILDS)]
            yield f'template/{tid}', {**template, 'id': tid, 'aliases': [f'bulk{i}'], 'created': created, 'latest_ready': ids[-1], 'builds': BUILDS}
            yield f'alias/{slug}/bulk{i}', tid
            yield f'team-template/{template["team"]}/{age}/{tid}', tid
            yield f'tag/{tid}/default', {'build': ids[-1], 'created': created}
            for n, b in enumerate(ids):
                yield f'build/{b}', {**build, 'id': b, 'template': tid, 'created': created + n}
                yield f'template-build/{tid}/{(1 << 63) - 1 - created - n:016x}/{b}', b

    with db:
        db.executemany('INSERT INTO kv (key, value, revision) VALUES (?, ?, 1)',
                       ((k, (v if isinstance(v, str) else json.dumps(v)).encode()) for k, v in rows()))
    db.close()


def measure(server, nginx, paths):
    """{name: medians of the rate, its ratio to nginx's, p99, nginx's rate, CPU ms a request, nginx's}"""
    result = {}
    for name, path in paths.items():
        answer = server.request('GET', path)
        assert answer.status == 200, answer.body
        nginx.add(f'{name}.json', answer.body)
        samples = []
        for _ in range(rounds):
            rate, p99, cpu = wrk(server.port, path, server.process.pid, server.key)
            limit, _, limit_cpu = wrk(nginx.port, f'/{name}.json', nginx.process.pid)
            samples.append((rate, rate / limit, p99, limit, cpu, limit_cpu))
        result[name] = [statistics.median(column) for column in zip(*samples)]
    return result


def report(metrics):
    if '--json' in sys.argv:
        print(json.dumps({'name': 'api', 'metrics': metrics,
                          'host': {'cpus': os.cpu_count(), 'kernel': platform.release(), 'machine': platform.machine()}}))
        return
    for metric, value in metrics.items():
        print(f'{metric:40} {value}')


def main():
    server, nginx, metrics = Server('--log-level', 'warn'), None, {}
    try:
        server.start()
        metrics['idle_resident_mib'] = round(resident_mib(server.process.pid), 1)
        nginx = Nginx(os.path.join(server.directory, 'nginx'))
        b = server.request('POST', '/v3/templates', {'name': 'web', 'cpuCount': 1, 'memoryMB': 512}).json
        server.make_ready(b['buildID'])
        paths = {'alias': '/templates/aliases/web', 'status': f'/templates/{b["templateID"]}/builds/{b["buildID"]}/status?logsOffset=0'}
        few = measure(server, nginx, paths)
        fill(server, b['templateID'])
        server.terminate()
        server.start()
        time.sleep(2)  # the housekeeping's first run
        metrics['idle_full_store_resident_mib'] = round(resident_mib(server.process.pid), 1)
        many = measure(server, nginx, {**paths, 'alias': '/templates/aliases/bulk7777'})
        for name in few:
            rate, ratio, p99, limit, cpu, limit_cpu = few[name]
            metrics |= {f'{name}_per_s': round(rate), f'{name}_nginx_per_s': round(limit), f'{name}_to_nginx_ratio': round(ratio, 3),
                        f'{name}_p99_ms': round(p99, 2), f'{name}_full_store_per_s': round(many[name][0]),
                        f'{name}_full_store_p99_ms': round(many[name][2], 2),
                        f'{name}_cpu_ms': round(cpu, 4), f'{name}_nginx_cpu_ms': round(limit_cpu, 4),
                        f'{name}_full_store_cpu_ms': round(many[name][4], 4), f'{name}_full_to_few_cpu_ratio': round(many[name][4] / cpu, 3),
                        f'{name}_few_to_full_ratio': round(few[name][1] / many[name][1], 3)}
    finally:
        if nginx:
            nginx.stop()
        server.stop()
    report(metrics)


main()
