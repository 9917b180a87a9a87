// The agent as PID 1 (an image without an init system): what is mounted, orphans, signals, and an ordered end.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, eventually, request } from './lib.mjs'

const guard = { timeout: 300_000 }
before(busyboxTemplate, guard)

const asRoot = { user: 'root' }

async function inSandbox(run) {
  const sandbox = await Sandbox.create('busybox')
  try {
    await run(sandbox, async (command, options) => (await sandbox.commands.run(command, options)).stdout.trim())
  } finally {
    await sandbox.kill()
  }
}

const ended = (sandbox) => eventually(async () => (await request('GET', `/sandboxes/${sandbox.sandboxId}`)).status === 404)

test('PID 1 has mounted what programs expect', guard, () => inSandbox(async (_, out) => {
  const mounts = new Map((await out('cat /proc/mounts')).split('\n').map((l) => l.split(' ')).map(([, at, type, options]) => [at, { type, options: options.split(',') }]))
  for (const [at, type, ...options] of [['/', 'ext4', 'rw', 'noatime'], ['/proc', 'proc', 'nosuid', 'nodev', 'noexec'], ['/sys', 'sysfs', 'nosuid', 'nodev', 'noexec'],
    ['/dev', 'devtmpfs', 'nosuid'], ['/dev/pts', 'devpts', 'nosuid', 'noexec'], ['/dev/shm', 'tmpfs', 'nosuid', 'nodev'],
    ['/run', 'tmpfs', 'nosuid', 'nodev'], ['/sys/fs/cgroup', 'cgroup2', 'nosuid', 'nodev', 'noexec']]) {
    assert.equal(mounts.get(at)?.type, type, at)
    for (const option of options) assert.ok(mounts.get(at).options.includes(option), `${at} ${option}`)
  }
  assert.equal(await out('echo through > /dev/fd/1; for l in fd stdin stdout stderr; do readlink /dev/$l; done'),
    'through\n/proc/self/fd\n/proc/self/fd/0\n/proc/self/fd/1\n/proc/self/fd/2')
  assert.equal(await out('stat -c "%a %F" /tmp /dev/shm /dev/null /dev/ptmx'), '1777 directory\n1777 directory\n666 character special file\n666 character special file')
}))

test('PID 1 reaps orphans, and takes no status from a command of its own', guard, () => inSandbox(async (sandbox, out) => {
  // 300 whose parent is gone before they end, with statuses of their own.
  await out('i=0; while [ $i -lt 300 ]; do (sh -c "exit 9" &) ; i=$((i+1)); done')
  const orphan = await out('sh -c "sleep 60 >/dev/null 2>&1 & echo \\$!"')
  assert.equal(await out(`awk '{print $4}' /proc/${orphan}/stat 2>/dev/null || cut -d" " -f4 /proc/${orphan}/stat`), '1')
  await out(`kill -KILL ${orphan}`, asRoot)
  await eventually(async () => (await out('grep -l "^State:.Z" /proc/[0-9]*/status 2>/dev/null; true')) === '')
  const statuses = await Promise.all([0, 1, 7, 42].map((n) => sandbox.commands.run(`sh -c "exit 9" & exit ${n}`).then((r) => r.exitCode, (e) => e.exitCode)))
  assert.deepEqual(statuses, [0, 1, 7, 42])
}))

test('no signal of a guest but those that end it moves PID 1', guard, () => inSandbox(async (sandbox, out) => {
  await out('for s in HUP QUIT ILL TRAP ABRT BUS FPE KILL SEGV PIPE ALRM CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO SYS; do kill -$s 1; done', asRoot)
  await assert.rejects(() => out('kill -TERM 1'), (e) => e.exitCode !== 0, 'the user may not')
  assert.equal(await out('cat /proc/1/comm; echo alive'), 'envd\nalive')
  assert.equal(await sandbox.isRunning(), true)
}))

for (const [how, command] of [['SIGTERM to PID 1', 'kill -TERM 1'], ['poweroff', 'busybox poweroff || poweroff'], ['halt', 'busybox halt || halt'], ['reboot', 'busybox reboot || reboot']]) {
  test(`an ordered end by ${how}: everything is asked first, its last words arrive, and the sandbox ends`, guard, async () => {
    const sandbox = await Sandbox.create('busybox')
    try {
      const words = []
      const onStdout = (t) => words.push(t)
      // The trap of a shell runs when its child has ended: that gets the signal too.
      const handle = await sandbox.commands.run('trap "echo saved; exit 5" TERM; echo ready; while :; do sleep 1000; done', { background: true, onStdout, timeoutMs: 0 })
      const end = handle.wait().then((r) => r.exitCode, (e) => e.exitCode ?? e)
      await eventually(() => words.join('').includes('ready'))
      await sandbox.commands.run(command, asRoot).catch(() => {})
      assert.equal(await end, 5)
      assert.equal(words.join(''), 'ready\nsaved\n')
      await ended(sandbox)
    } finally {
      await sandbox.kill().catch(() => {})
    }
  })
}

test('what ignores the request is killed, what is stopped hears it, and the guest ends all the same', guard, async () => {
  const sandbox = await Sandbox.create('busybox')
  try {
    const words = []
    const start = (command) => sandbox.commands.run(command, { background: true, onStdout: (t) => words.push(t), timeoutMs: 0 })
    const deaf = await start('trap "" TERM; echo deaf-$$; while :; do sleep 1; done')
    const stopped = await start('trap "echo woke; exit 6" TERM; echo stopped-$$-; kill -STOP $$; while :; do sleep 1000; done')
    await eventually(() => /deaf-/.test(words.join('')) && /stopped-\d+-/.test(words.join('')))
    const pid = /stopped-(\d+)-/.exec(words.join(''))[1]
    await eventually(async () => (await sandbox.commands.run(`grep "^State:.T" /proc/${pid}/status || true`)).stdout !== '')
    const ends = [deaf, stopped].map((h) => h.wait().then((r) => r.exitCode, (e) => e.exitCode ?? String(e)))
    await sandbox.commands.run('kill -TERM 1', asRoot).catch(() => {})
    assert.equal(await ends[1], 6)
    assert.match(words.join(''), /woke/)
    assert.notEqual(await ends[0], 0)
    await ended(sandbox)
  } finally {
    await sandbox.kill().catch(() => {})
  }
})
