"""bench/run fork: from a snapshot to an answer, against the bare floor.

In one run, interleaved: the floor (bare QEMU restore of the same snapshot to the agent's first answer, by
build/vmon-bench-fork), POST /sandboxes to 201, and create to the first answer of a command. Prints p50 and p95, the
ratios to the floor, the cold boot of the same root file system, the private memory and the CPU time of an idle clone, and pausing it (POST to
204, durable) and resuming it (POST to 201). All of that without sandboxes that are kept ready; then the server is started again
with a warm pool, and creates that find one there are measured, one at a time, fifty at once, and create and kill in turn.
"""
import base64, concurrent.futures, glob, json, os, re, statistics, struct, subprocess, time

from client import call, data, percentile, report, root, runs

FIFTY = 50


def first_command(sandbox):
    message = json.dumps({'process': {'cmd': '/bin/bash', 'args': ['-l', '-c', 'echo hi']}, 'stdin': False}).encode()
    headers = {'E2b-Sandbox-Id': sandbox['sandboxID'], 'E2b-Sandbox-Port': '49983',
               'Content-Type': 'application/connect+json', 'Connect-Protocol-Version': '1'}
    if sandbox.get('envdAccessToken'):
        headers['X-Access-Token'] = sandbox['envdAccessToken']
    status, payload = call('POST', '/process.Process/Start', b'\0' + struct.pack('>I', len(message)) + message, headers)
    assert status == 200 and base64.b64encode(b'hi\n') in payload, (status, payload)


def processes(sandbox_id):
    """The /proc directories of the VM's QEMU and shim."""
    for cmdline in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            if sandbox_id.encode() in open(cmdline, 'rb').read():
                yield os.path.dirname(cmdline)
        except OSError:
            continue


def private_mib(sandbox_id):
    """What the VM's QEMU and shim have written, by smaps_rollup. (Their private clean pages, of programs and of the template's memory, are shared
    as soon as there is a second VM.)"""
    return sum(int(line.split()[1]) for process in processes(sandbox_id) for line in open(process + '/smaps_rollup')
               if line.startswith('Anonymous:')) / 1024


def cpu_s(sandbox_id):
    """The time that the VM's QEMU and shim have had on a CPU."""
    return sum(sum(map(int, open(process + '/stat').read().rsplit(')', 1)[1].split()[11:13]))
               for process in processes(sandbox_id)) / os.sysconf('SC_CLK_TCK')


def idle_cpu_ratio():
    """CPU time over wall clock time of a sandbox in which nothing happens, after it has settled."""
    sandbox = json.loads(call('POST', '/sandboxes', {'templateID': 'busybox', 'timeout': 300})[1])
    time.sleep(10)
    before = cpu_s(sandbox['sandboxID'])
    time.sleep(60)
    used = cpu_s(sandbox['sandboxID']) - before
    assert call('DELETE', '/sandboxes/' + sandbox['sandboxID'])[0] == 204
    return used / 60


def floor(build_dir, kit, extra=()):
    out = subprocess.run([os.path.join(root, 'build/vmon-bench-fork'), *extra, build_dir, kit],
                         check=True, stdout=subprocess.PIPE).stdout
    return json.loads(out)


def serve(action, **environment):
    subprocess.run([os.path.join(root, 'tests/e2e/serve'), action], check=True, env={**os.environ, **environment})


class Pool:
    """The sandboxes that stand ready, by the log of the server."""

    def __init__(self):
        self.log, self.used = os.path.join(os.path.dirname(data), 'serve.log'), set()
        self.start = os.path.getsize(self.log)

    def ready(self):
        with open(self.log) as f:
            f.seek(self.start)
            made = set(re.findall(r'pool: sandbox (\w+) of build \S+ is ready', f.read()))
        return {i for i in made - self.used if os.path.isdir(os.path.join(data, 'sandboxes', i))}

    def wait(self, n):
        end = time.monotonic() + 300
        while len(self.ready()) < n:
            assert time.monotonic() < end, f'{len(self.ready())} of {n} sandboxes are ready'
            time.sleep(0.05)

    def create(self):
        """A sandbox that stood ready, and the milliseconds until its 201."""
        began = time.monotonic()
        status, payload = call('POST', '/sandboxes', {'templateID': 'busybox', 'secure': True, 'timeout': 300})
        took = (time.monotonic() - began) * 1000
        assert status == 201, payload
        sandbox = json.loads(payload)
        self.used.add(sandbox['sandboxID'])
        return sandbox, took, began


def kill(sandbox):
    assert call('DELETE', '/sandboxes/' + sandbox['sandboxID'])[0] == 204


def pooled(build_dir, kit, metrics):
    serve('stop')
    pool = Pool()
    serve('start', VMON_POOL='2')
    for _ in range(2):
        kill(pool.create()[0])
    floors, creates, commands, private = [], [], [], []
    for i in range(runs + 2):
        pool.wait(2)  # it is full: nothing is being made meanwhile
        waiting = pool.ready()
        sandbox, took, began = pool.create()
        assert sandbox['sandboxID'] in waiting
        first_command(sandbox)
        answered = time.monotonic()
        memory = private_mib(sandbox['sandboxID'])
        kill(sandbox)
        bare = floor(build_dir, kit)['total_ms']
        if i >= 2:
            creates.append(took)
            commands.append((answered - began) * 1000)
            private.append(memory)
            floors.append(bare)
    for name, values in (('pool_floor', floors), ('pool_create', creates), ('pool_create_to_command', commands)):
        metrics[f'{name}_p50_ms'] = round(percentile(values, 50), 1)
        metrics[f'{name}_p95_ms'] = round(percentile(values, 95), 1)
    metrics['pool_create_to_floor_p50_ratio'] = round(metrics['pool_create_p50_ms'] / metrics['pool_floor_p50_ms'], 3)
    metrics['pool_create_to_command_to_cold_boot_ratio'] = round(metrics['pool_create_to_command_p50_ms'] / metrics['cold_boot_ms'], 4)
    serve('stop')
    pool = Pool()
    serve('start', VMON_POOL='64', VMON_POOL_MB='16384')
    with concurrent.futures.ThreadPoolExecutor(FIFTY) as workers:
        for sandbox, _, _ in workers.map(lambda _: pool.create(), range(FIFTY)):  # makes them wanted
            kill(sandbox)
        pool.wait(FIFTY)
        made = list(workers.map(lambda _: pool.create(), range(FIFTY)))
        times = [took for _, took, _ in made]
        list(workers.map(lambda m: kill(m[0]), made))
    metrics['pool_fifty_p50_ms'] = round(percentile(times, 50), 1)
    metrics['pool_fifty_p99_ms'] = round(percentile(times, 99), 1)
    metrics['pool_fifty_p99_to_p50_ratio'] = round(metrics['pool_fifty_p99_ms'] / metrics['pool_fifty_p50_ms'], 2)
    count, began = 0, time.monotonic()
    while time.monotonic() - began < 20:
        kill(pool.create()[0])
        count += 1
    metrics['create_and_kill_per_s'] = round(count / (time.monotonic() - began), 2)
    serve('stop')
    serve('start')


def main():
    status, payload = call('GET', '/templates')
    template = next(t for t in json.loads(payload) if 'busybox' in t['aliases'])
    build_dir = os.path.join(data, 'builds', template['buildID'])
    kit = os.environ['VMON_E2E_KIT']
    floors, creates, commands, private, pauses, resumes, changed = [], [], [], [], [], [], []
    for i in range(runs + 2):  # the first two warm the caches
        bare = floor(build_dir, kit)['total_ms']
        began = time.monotonic()
        status, payload = call('POST', '/sandboxes', {'templateID': 'busybox', 'secure': True, 'timeout': 300})
        created = time.monotonic()
        assert status == 201, payload
        sandbox = json.loads(payload)
        first_command(sandbox)
        answered = time.monotonic()
        memory = private_mib(sandbox['sandboxID'])
        path = '/sandboxes/' + sandbox['sandboxID']
        before = time.monotonic()
        assert call('POST', path + '/pause', {})[0] == 204
        paused = time.monotonic()
        size = os.path.getsize(os.path.join(data, 'sandboxes', sandbox['sandboxID'], 'paused', 'memory-delta'))
        resuming = time.monotonic()
        assert call('POST', '/v2' + path + '/connect', {'timeout': 300})[0] == 201
        resumed = time.monotonic()
        assert call('DELETE', '/sandboxes/' + sandbox['sandboxID'])[0] == 204
        if i >= 2:
            floors.append(bare)
            creates.append((created - began) * 1000)
            commands.append((answered - began) * 1000)
            private.append(memory)
            pauses.append((paused - before) * 1000)
            resumes.append((resumed - resuming) * 1000)
            changed.append(size / 2**20)
    cold = floor(build_dir, kit, ['--cold'])['total_ms']
    metrics = {}
    for name, values in (('floor', floors), ('create', creates), ('create_to_command', commands), ('pause', pauses), ('resume', resumes)):
        metrics[f'{name}_p50_ms'] = round(percentile(values, 50), 1)
        metrics[f'{name}_p95_ms'] = round(percentile(values, 95), 1)
    metrics['cold_boot_ms'] = round(cold, 1)
    metrics['create_p50_ratio'] = round(metrics['create_p50_ms'] / metrics['floor_p50_ms'], 2)
    metrics['create_p95_ratio'] = round(metrics['create_p95_ms'] / metrics['floor_p95_ms'], 2)
    metrics['create_to_command_p50_ratio'] = round(metrics['create_to_command_p50_ms'] / metrics['floor_p50_ms'], 2)
    metrics['resume_to_create_p50_ratio'] = round(metrics['resume_p50_ms'] / metrics['create_p50_ms'], 2)
    metrics['paused_memory_p50_mib'] = round(statistics.median(changed), 1)
    metrics['private_memory_p50_mib'] = round(statistics.median(private), 1)
    metrics['idle_cpu_ratio'] = round(idle_cpu_ratio(), 4)
    pooled(build_dir, kit, metrics)
    report('fork', metrics, build_dir)


main()
