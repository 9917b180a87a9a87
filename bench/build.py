"""bench/run build: what the build pipeline adds to the user's own work.

In one run, interleaved, medians:
* a wholly cached rebuild from the trigger's POST to the boot of the final VM, by the time stamps of the build's log,
  beside `buildah bud --layers` of the same Dockerfile, wholly cached too, process start to end;
* one RUN of `true`, from one captured layer to the next (the step and its layer);
* finalize, phase by phase.
With VMON_BENCH_DEBIAN=1 also the phases of an uncached build of the Debian image (minutes).
"""
import hashlib, io, json, os, re, shutil, statistics, subprocess, tarfile, tempfile, time, urllib.request
from datetime import datetime

from client import call, data, percentile, report, runs

registry = os.environ['VMON_E2E_REGISTRY']
FILES = {'app/main.sh': '#!/bin/sh\necho hello\n', 'app/settings': 'a=1\n' * 200, 'app/data': 'x' * 65536}
COMMANDS = ['mkdir -p /srv/one', 'echo two > /srv/two', 'cp -r /srv/app /srv/three', 'chmod -R a+rX /srv']
TRUES = 9


def answered(expected, method, path, body=None):
    status, payload = call(method, path, body)
    assert status == expected, (method, path, status, payload)
    return json.loads(payload) if payload else None


def upload(template_id):
    """The context archive; answers its hash."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w:gz') as tar:
        for name, text in FILES.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    digest = hashlib.sha256(json.dumps(FILES, sort_keys=True).encode()).hexdigest()
    link = answered(201, 'GET', f'/templates/{template_id}/files/{digest}')
    if not link['present']:
        urllib.request.urlopen(urllib.request.Request(link['url'], data=buffer.getvalue(), method='PUT')).close()
    return digest


class Build:
    """One build, run to its end: `log` holds (seconds, message), `trigger` the instant of the POST."""

    def __init__(self, name, image, commands, copy=False, force=False):
        template = answered(202, 'POST', '/v3/templates', {'name': name, 'cpuCount': 1, 'memoryMB': 512})
        steps = [{'type': 'RUN', 'args': [c, 'root']} for c in commands]
        if copy:
            steps.insert(0, {'type': 'COPY', 'args': ['app', '/srv/app', '', ''], 'filesHash': upload(template['templateID'])})
        path = f"/templates/{template['templateID']}/builds/{template['buildID']}"
        self.id = template['buildID']
        self.trigger = time.time()
        answered(202, 'POST', '/v2' + path, {'fromImage': image, 'steps': steps, 'force': force})
        while (status := answered(200, 'GET', path + '/status?limit=0'))['status'] in ('waiting', 'building'):
            time.sleep(0.2)
        self.log, offset = [], 0
        while entries := answered(200, 'GET', f'{path}/status?logsOffset={offset}')['logEntries']:
            offset += len(entries)
            self.log += [(datetime.fromisoformat(e['timestamp'].replace('Z', '+00:00')).timestamp(), e['message']) for e in entries]
        assert status['status'] == 'ready', (name, status, self.log[-5:])

    def phases(self):
        """[(end in seconds, phase, milliseconds)]"""
        return [(at, m[1], int(m[2])) for at, line in self.log if (m := re.fullmatch(r'\[time\] (.+): (\d+) ms', line))]

    def boots(self):
        return sum(phase.startswith('boot of') for _, phase, _ in self.phases())

    def to_finalize_ms(self):
        end, _, took = next(p for p in self.phases() if p[1] == 'boot of the final VM')
        return (end - self.trigger) * 1000 - took


class Buildah:
    def __init__(self, image):
        self.root = tempfile.mkdtemp(prefix='vmon-bench-')
        for name, text in FILES.items():
            file = os.path.join(self.root, 'context', name)
            os.makedirs(os.path.dirname(file), exist_ok=True)
            with open(file, 'w') as f:
                f.write(text)
        with open(os.path.join(self.root, 'Dockerfile'), 'w') as f:
            f.write(f'FROM {image}\nCOPY app /srv/app\n' + ''.join(f'RUN {c}\n' for c in COMMANDS))
        self.driver = next(d for d in ('overlay', 'vfs') if self.build(d) is not None)

    def build(self, driver=None):
        """Milliseconds of one build, None where the storage driver does not work here."""
        storage = ['--root', f'{self.root}/storage', '--runroot', f'{self.root}/run', '--storage-driver', driver or self.driver]
        began = time.monotonic()
        done = subprocess.run(['buildah', *storage, 'bud', '--layers', '--isolation', 'chroot', '--tls-verify=false', '-q', '-t', 'bench',
                               '-f', f'{self.root}/Dockerfile', f'{self.root}/context'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        took = (time.monotonic() - began) * 1000
        if done.returncode and driver != 'overlay':
            raise SystemExit(f'error: buildah failed: {done.stdout.decode()[-500:]}')
        if done.returncode:
            shutil.rmtree(f'{self.root}/storage', ignore_errors=True)
        return None if done.returncode else took

    def close(self):
        subprocess.run(['umount', '-l', f'{self.root}/storage/overlay'], stderr=subprocess.DEVNULL)
        shutil.rmtree(self.root, ignore_errors=True)


def step_times(build):
    """Milliseconds of each RUN but the first: from one captured layer to the next."""
    captured = [at for at, phase, _ in build.phases() if phase == 'layer captured'][-TRUES:]
    return [(b - a) * 1000 for a, b in zip(captured, captured[1:])]


def markdown(title, rows):
    return '\n'.join([title, '', '| Phase | Time |', '|---|---|', *(f'| {phase} | {took} ms |' for phase, took in rows)])


def main():
    image = f'{registry}/vmon/bash:1'
    nonce = int(time.time())
    buildah = Buildah(image)
    try:
        cold = Build('bench-cached', image, COMMANDS, copy=True)
        cached, beside, trues, finalize = [], [], [], {}
        for i in range(max(3, runs // 4)):
            beside.append(buildah.build())
            build = Build('bench-cached', image, COMMANDS, copy=True)
            assert build.boots() == 1, build.phases()
            cached.append(build.to_finalize_ms())
            for _, phase, took in build.phases():
                finalize.setdefault(phase, []).append(took)
            if i < 3:
                trues += step_times(Build('bench-true', image, [f'true {nonce} {i} {k}' for k in range(TRUES)]))
    finally:
        buildah.close()
    metrics = {'cached_to_finalize_p50_ms': round(percentile(cached, 50), 1), 'cached_to_finalize_p95_ms': round(percentile(cached, 95), 1),
               'buildah_cached_p50_ms': round(percentile(beside, 50), 1), 'buildah_cached_p95_ms': round(percentile(beside, 95), 1),
               'run_true_p50_ms': round(percentile(trues, 50), 1), 'run_true_p95_ms': round(percentile(trues, 95), 1),
               'finalize_p50_ms': round(sum(statistics.median(v) for k, v in finalize.items() if k != 'resolve the image'), 1)}
    metrics['cached_to_buildah_p50_ratio'] = round(metrics['cached_to_finalize_p50_ms'] / metrics['buildah_cached_p50_ms'], 3)
    tables = [f'buildah: storage driver {buildah.driver}; boots of a build with nothing cached: {cold.boots()}',
              markdown('A wholly cached rebuild:', [(k, round(statistics.median(v))) for k, v in finalize.items()])]
    last = cold
    if os.environ.get('VMON_BENCH_DEBIAN') == '1':
        last = Build('bench-debian', f'{registry}/vmon/debian:12', ['true'], force=True)
        metrics['debian_uncached_s'] = round(sum(took for _, _, took in last.phases()) / 1000, 1)
        tables.append(markdown(f'The Debian image, nothing cached ({last.boots()} boots):', [(p, took) for _, p, took in last.phases()]))
    report('build', metrics, os.path.join(data, 'builds', last.id), tables)


main()
