// The step cache is never wrong (known-failures D3; product page "Steps and the step cache"): a build that resumes from any
// layer gives what a cold one gives.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { Sandbox, Template } from 'e2b'
import { busybox, dir, image, logTo, serve } from './lib.mjs'

// The data directory may be an earlier run's: what must be built for the first time names this run.
const run = `: ${Date.now()}`

// Builds; answers the log: what steps printed and which were CACHED, by their number.
async function build(template, name = 'cache', options = {}) {
  const lines = []
  await Template.build(template, name, { cpuCount: 1, memoryMB: 512, ...options,
    onBuildLogs: (e) => { lines.push(e.message); logTo(name)(e) } })
  return {
    lines,
    out: lines.filter((l) => l.includes('[stdout]:')).map((l) => l.replace(/^.*\[stdout\]: /, '')),
    cached: lines.filter((l) => /^CACHED \[builder/.test(l)).map((l) => Number(l.match(/builder (\d+)\//)[1])),
  }
}

// What a step may find beside its disk.
const surroundings = 'ls -A /run /run/e2b /dev/shm; cut -d" " -f2-4 /proc/mounts | sed "s/size=[0-9]*k,nr_inodes=[0-9]*,//" | sort; hostname; tail -n +2 /proc/swaps; ' +
  'for p in /proc/[0-9]*; do [ ! -e $p/exe ] || echo "$(cat $p/comm)"; done'

test('the surroundings of a step do not depend on whether the step before it was cached', async () => {
  const first = () => busybox().runCmd(`${run}; ` + 'echo x >/run/x; mkdir -p /run/d/e; echo x >/dev/shm/x; umount /dev/shm; mkdir -p "/mnt/a b"; ' +
    'mount -t tmpfs none "/mnt/a b"; mount -t tmpfs none "/mnt/a b"; echo x >"/mnt/a b/x"; mount -o bind /etc /mnt; hostname other; ' +
    'dd if=/dev/zero of=/swap bs=1024 count=256; chmod 600 /swap; mkswap /swap >/dev/null && swapon /swap; sleep 5000 </dev/null >/dev/null 2>&1 &', { user: 'root' })
    .runCmd('rm -rf /run/e2b; mount -o remount,ro /', { user: 'root' })
  const cold = await build(first().runCmd(surroundings, { user: 'root' }).runCmd('ls -A "/mnt/a b" /mnt >/after', { user: 'root' }), 'surroundings')
  assert.deepEqual(cold.cached, [])
  const resumed = await build(first().runCmd(surroundings + ' # again', { user: 'root' }), 'surroundings')
  assert.deepEqual(resumed.cached, [1, 2])
  assert.ok(cold.out.length > 10, cold.out.join('\n'))
  assert.deepEqual(cold.out, resumed.out)
  assert.ok(cold.out.includes('vibemon') && !cold.out.includes('x') && !cold.out.some((l) => /sleep|swap/.test(l)), cold.out.join('\n'))
})

test('devices, loop devices and IPC of a step are gone for the next, cached or not', async () => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-context-'))
  fs.copyFileSync(execFileSync('sh', ['-c', 'command -v busybox'], { encoding: 'utf8' }).trim(), path.join(context, 'busybox')) // has modprobe
  const first = () => Template({ fileContextPath: context }).fromImage(image('bash:1')).copy('busybox', '/opt/', { mode: 0o755 })
    .runCmd(`set -e; ${run}; ipcmk -M 4096; ipcmk -S 3; ipcmk -Q; mkdir -p /mq; mount -t mqueue none /mq; touch /mq/queue; ` +
      '/opt/busybox modprobe loop; truncate -s 1M /disk; losetup /dev/loop0 /disk; losetup -a; ' +
      'echo x >/dev/file; mkdir -p /dev/d/e; ln -s /etc /dev/link; mknod /dev/mine c 1 3; chmod 600 /dev/zero; rm /dev/full /dev/fd; rm /dev/null; echo x >/dev/null', { user: 'root' })
  const look = 'tail -q -n +2 /proc/sysvipc/*; mount -t mqueue none /mq; ls /mq; losetup -a; ls -lR --time-style=+ /dev | grep -v loop; echo x >/dev/null; head -c 1 /dev/full | wc -c; cat </dev/fd/0'
  try {
    const cold = await build(first().runCmd(look, { user: 'root' }), 'devices')
    const made = cold.lines.filter((l) => /^\[builder 2\/3\] \[stdout\]/.test(l)).join('\n')
    assert.match(made, /Shared memory id: [^]*Semaphore id: [^]*Message queue id: [^]*\/dev\/loop0: .*\/disk/, 'the step did what is undone')
    const resumed = await build(first().runCmd(`${look} # again`, { user: 'root' }), 'devices')
    assert.deepEqual(resumed.cached, [1, 2])
    const seen = (b) => b.lines.filter((l) => l.startsWith('[builder 3/3] [std')).map((l) => l.replace(/^.*?\]: /, ''))
    assert.deepEqual(seen(cold), seen(resumed))
    assert.ok(seen(cold).some((l) => /^crw-rw-rw- +1 root root +1, +3 +null$/.test(l)), seen(cold).join('\n'))
    assert.ok(!seen(cold).some((l) => /queue|\/disk|\bmine$|\blink\b|\bfile$/.test(l)), seen(cold).join('\n'))
  } finally {
    fs.rmSync(context, { recursive: true })
  }
})

test('218 D3.34 D3.35 COPY of the same content is cached, whoever owns it and in whatever order it was made', async () => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-context-'))
  const make = (names) => {
    fs.rmSync(path.join(context, 'tree'), { recursive: true, force: true })
    fs.mkdirSync(path.join(context, 'tree/sub'), { recursive: true })
    for (const name of names) fs.writeFileSync(path.join(context, 'tree', name), `${run} ${name}`)
  }
  const template = (options) => Template({ fileContextPath: context }).fromImage(image('busybox:1')).copy('tree', '/tree', options)
  try {
    make(['a', 'b', 'sub/c'])
    assert.deepEqual((await build(template())).cached, [])
    make(['sub/c', 'b', 'a'])
    fs.utimesSync(path.join(context, 'tree/a'), 1, 1)
    if (process.getuid() === 0) fs.chownSync(path.join(context, 'tree/b'), 1234, 4321)
    assert.deepEqual((await build(template())).cached, [1])
    assert.deepEqual((await build(template({ forceUpload: true }))).cached, [], 'the SDK sends force with forceUpload')
    fs.chmodSync(path.join(context, 'tree/a'), 0o711)
    assert.deepEqual((await build(template())).cached, [], 'a mode is content')
  } finally {
    fs.rmSync(context, { recursive: true })
  }
})

test('216 217 D3.38 what a step removed stays removed; skipCache rebuilds from where it stands', async () => {
  const random = 'cat /proc/sys/kernel/random/uuid >/r; cat /r'
  const steps = (template) => template.runCmd(`${run}; echo one >/one; echo two >/two`, { user: 'root' }).runCmd(`rm /two; ${random}`, { user: 'root' })
  const list = 'ls /; cat /r'
  const first = await build(steps(busybox()).runCmd(list))
  assert.ok(first.out.includes('one') && !first.out.includes('two'))
  const resumed = await build(steps(busybox()).runCmd(`${list} # again`))
  assert.deepEqual(resumed.cached, [1, 2])
  assert.deepEqual(resumed.out, first.out.slice(1), 'the same tree, with the same random file')

  const forced = await build(steps(busybox().runCmd(`${run}`).skipCache()).runCmd(list))
  assert.deepEqual(forced.cached, [])
  const partly = await build(busybox().runCmd(`${run}; echo one >/one; echo two >/two`, { user: 'root' }).skipCache().runCmd(`rm /two; ${random}`, { user: 'root' }).runCmd(list))
  assert.deepEqual(partly.cached, [1])
  assert.notEqual(partly.out[0], first.out[0], 'run anew')
  const after = await build(steps(busybox()).runCmd(list))
  assert.deepEqual(after.cached, [1, 2, 3], 'what was forced has taken its place')
  assert.deepEqual(after.out, [])

  const whole = await build(steps(Template().skipCache().fromImage(image('busybox:1'))).runCmd(list))
  assert.deepEqual(whole.cached, [])
  assert.ok(whole.lines.some((l) => l.startsWith('[base] FROM')), 'the base was made anew')
  assert.notEqual(whole.out[0], partly.out[0])
})

test('D6.79 free space is what the file system counts, in a cold build, a cached one and a sandbox', async () => {
  const free = "sync; df -k / | tail -n 1 | awk '{print $(NF-2)}'"
  const steps = () => busybox().runCmd(`${run} free; dd if=/dev/urandom of=/big bs=1048576 count=64 2>/dev/null; dd if=/dev/urandom of=/gone bs=1048576 count=48 2>/dev/null; sync; rm /gone`, { user: 'root' })
  const kib = async (template) => Number((await build(template, 'free')).out.at(-1))
  const cold = await kib(steps().runCmd(free, { user: 'root' })), cached = await kib(steps().runCmd(`${free} # again`, { user: 'root' }))
  const empty = await kib(busybox().runCmd(`${run}; ${free}`, { user: 'root' }))
  const sandbox = await Sandbox.create('free')
  try {
    const there = Number((await sandbox.commands.run(free)).stdout)
    for (const [what, got, want] of [['cached', cached, cold], ['64 MiB less', cold, empty - 65536], ['the sandbox', there, empty]])
      assert.ok(Math.abs(got - want) < 4096, `${what}: ${got} KiB, ${want} expected`)
  } finally {
    await sandbox.kill()
  }
})

const stepsDir = path.join(dir, 'data/cache/steps')

test('a damaged layer is built again, never booted', async () => {
  const steps = () => busybox().runCmd(`${run} damage; seq 1 20000 >/numbers; sha256sum /numbers`, { user: 'root' })
    .runCmd('sha256sum /numbers >/sum; cat /sum', { user: 'root' })
  const before = new Set(fs.readdirSync(stepsDir))
  const whole = await build(steps())
  const [second, first] = fs.readdirSync(stepsDir).filter((key) => !before.has(key))
    .map((key) => ({ disk: path.join(stepsDir, key, 'layer.qcow2'), record: path.join(stepsDir, key, 'context.json'), parent: JSON.parse(fs.readFileSync(path.join(stepsDir, key, 'context.json'))).layer.parentKey }))
    .sort((a) => before.has(a.parent) ? 1 : -1)
  const flip = (file, at) => {
    const fd = fs.openSync(file, 'r+'), byte = Buffer.alloc(1)
    fs.readSync(fd, byte, 0, 1, at)
    byte[0] ^= 0x40
    fs.writeSync(fd, byte, 0, 1, at)
    fs.closeSync(fd)
  }
  for (const [what, damage, cached] of [
    ['the header', () => flip(first.disk, 3), []],
    ['the L1 table', () => flip(second.disk, 3 * 65536 + 2), [1]],
    ['a data cluster', () => flip(first.disk, fs.statSync(first.disk).size - 70000), []],
    ['the length', () => fs.truncateSync(second.disk, 65536), [1]],
    ['no disk', () => fs.rmSync(first.disk), []],
    ['the record', () => flip(second.record, 40), [1]],
  ]) {
    damage()
    const again = await build(steps())
    assert.deepEqual(again.cached, cached, what)
    assert.ok(again.lines.some((l) => l.includes('The step cache had 1 damaged layers')), what)
    assert.deepEqual(again.out.at(-1), whole.out.at(-1), what)
  }
  assert.deepEqual((await build(steps())).cached, [1, 2])
})

test('a build of more steps than the cache has layers resumes from its last step', async () => {
  const count = 52
  const steps = () => {
    let template = busybox().runCmd(`${run} long`, { user: 'root' })
    for (let i = 1; i <= count; i++) template = i % 4 ? template.setEnvs({ [`N${i % 7}`]: String(i) }) : template.runCmd(`echo ${i} >>/all; rm -f /step${i - 8}; echo ${i} >/step${i}`, { user: 'root' })
    return template
  }
  const show = 'cat /all; ls / | grep step; env | grep ^N | sort'
  const cold = await build(steps().runCmd(show))
  assert.deepEqual(cold.cached, [])
  assert.ok(fs.readdirSync(stepsDir).filter((n) => /^[0-9a-f]{64}$/.test(n)).length <= 48)
  const resumed = await build(steps().runCmd(`${show} # again`))
  assert.equal(resumed.cached.length, count + 1)
  assert.deepEqual(resumed.out, cold.out)
  assert.deepEqual(cold.out.slice(0, 13), Array.from({ length: 13 }, (_, i) => String(4 * i + 4)))
})

// A random list of steps, from a seed; each works whatever came before.
function randomSteps(seed) {
  const random = (n) => { seed = (seed * 1103515245 + 12345) % 2147483648; return Math.floor(seed / 65536) % n }
  const name = () => `/p/${'abc'[random(3)]}${random(2)}`
  const kinds = [
    (t) => t.runCmd(`rm -rf ${name()}; mkdir -p /p; ${`echo ${random(1000)} >>${name()};`.repeat(1 + random(3))} true`, { user: 'root' }),
    (t) => t.runCmd(`rm -rf ${name()}; mkdir -p ${name()}/d; true`, { user: 'root' }),
    (t) => t.runCmd(`mkdir -p /p; ln -sf ${name()} ${name()}/l 2>/dev/null; ln ${name()} /p/hard${random(3)} 2>/dev/null; true`, { user: 'root' }),
    (t) => t.runCmd(`mkdir -p /p; dd if=/dev/zero of=/p/big${random(2)} bs=65536 seek=${random(9)} count=${1 + random(20)} 2>/dev/null; chmod ${['711', '4755', '1777'][random(3)]} /p/*; chmod 600 /p/big0; true`, { user: 'root' }),
    (t) => t.runCmd(`chown ${random(5)}:${random(5)} /p/*; mknod /p/pipe${random(3)} p 2>/dev/null; mv /p/big0 ${name()} 2>/dev/null; true`, { user: 'root' }),
    (t) => t.runCmd(`ls /run /dev/shm >/p/memory; echo x >/run/x; echo $$ >/dev/shm/y; sleep 900 </dev/null >/dev/null 2>&1 & true`, { user: 'root' }),
    (t) => t.setEnvs({ [`E${random(3)}`]: `${random(9)} $E0` }),
    (t) => t.setWorkdir(`/p/w${random(3)}`),
    (t) => t.setUser(['root', 'user'][random(2)]),
  ]
  const chosen = Array.from({ length: 7 }, () => { const at = seed = (seed + 7919) % 2147483648, kind = kinds[random(kinds.length)]; return (t) => { seed = at; random(1); return kind(t) } })
  return (template) => chosen.reduce((t, step) => step(t), template.runCmd('mkdir -p /p', { user: 'root' }))
}

const tree = 'cd /; find p home etc -xdev | sort | while read -r f; do stat -c "%n %F %a %u:%g %h" "$f"; [ ! -L "$f" ] || readlink "$f"; ' +
  '[ -L "$f" ] || [ ! -f "$f" ] || { stat -c %s "$f"; sha256sum <"$f"; }; done'
const listed = (template) => template.skipCache().runCmd('pwd; id; env | sort').runCmd(tree, { user: 'root' })

for (const seed of process.env.VMON_SOAK ? [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] : [1, 2]) {
  test(`a cold build, a cached one and one after kill -9 of the server have the same tree (list ${seed})`, async () => {
    const steps = randomSteps(seed * 1000 + 17)
    const cold = await build(listed(steps(Template().skipCache().fromImage(image('busybox:1')).runCmd(`${run} ${seed}`))))
    assert.ok(cold.out.length > 20)
    const cached = await build(listed(steps(busybox().runCmd(`${run} ${seed}`))))
    assert.deepEqual(cached.cached, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert.deepEqual(cached.out, cold.out)

    let killed = false
    const interrupted = Template.build(listed(steps(busybox().runCmd(`${run} ${seed} killed`))), 'cache', {
      cpuCount: 1, memoryMB: 512, requestTimeoutMs: 5000,
      onBuildLogs: (e) => { if (!killed && e.message.startsWith(`[builder ${3 + seed % 6}/`)) { killed = true; serve('kill') } },
    })
    await assert.rejects(interrupted)
    assert.ok(killed)
    serve('start')
    const resumed = await build(listed(steps(busybox().runCmd(`${run} ${seed} killed`))))
    assert.ok(resumed.cached.length >= 1, 'some steps were kept')
    assert.deepEqual(resumed.out, cold.out)
  })
}
