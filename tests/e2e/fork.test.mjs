// Forks: what is alive in them, what differs, what they share and cannot write. On a busybox template with a start command.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test, before, after } from 'node:test'
import { Sandbox } from 'e2b'
import { busybox, dir, eventually, request, template } from './lib.mjs'

let a, b

before(async () => {
  // The start command draws random numbers for as long as it lives, in the snapshot and in every fork of it.
  await template('forks', () => busybox().setStartCmd(
    'while true; do cat /proc/sys/kernel/random/uuid >> /tmp/drawn; sleep 1; done', '[ -s /tmp/drawn ]'))
  ;[a, b] = await Promise.all([Sandbox.create('forks'), Sandbox.create('forks')])
})
after(() => Promise.all([a?.kill(), b?.kill()]))

const run = async (sandbox, cmd) => (await sandbox.commands.run(cmd)).stdout.trim()

test('the process of the start command is alive and is the one of the snapshot', async () => {
  const find = `for p in /proc/[0-9]*; do case $(tr '\\0' ' ' < $p/cmdline 2>/dev/null) in *random/uu''id*drawn*) echo "\${p#/proc/} $(cut -d' ' -f22 $p/stat)"; break;; esac; done`
  const [one, two] = await Promise.all([run(a, find), run(b, find)])
  assert.match(one, /^\d+ \d+$/)
  assert.equal(one, two, 'same pid, same start time')
})

test('forks never draw the same random numbers', async () => {
  const drawn = async (s) => (await s.files.read('/tmp/drawn')).trim().split('\n')
  const snapshot = new Set((await drawn(a)).filter((_, i) => i < 1))
  let [one, two] = await Promise.all([drawn(a), drawn(b)])
  assert.ok(snapshot.has(two[0]), 'both have the line of before the snapshot')
  let common = 0
  while (one[common] === two[common] && common < one.length) common++
  await eventually(async () => {
    [one, two] = await Promise.all([drawn(a), drawn(b)])
    return one.length > common + 1 && two.length > common + 1
  })
  const after = new Set(one.slice(common))
  assert.equal(two.slice(common).filter((l) => after.has(l)).length, 0)
})

test('clock, identity and environment are the fork\'s own', async () => {
  const [before_, guest] = [Date.now(), Number(await run(a, 'date +%s'))]
  assert.ok(Math.abs(guest * 1000 - before_) < 2000, `guest ${guest}, host ${before_}`)
  assert.equal(await run(a, 'cat /run/e2b/.E2B_SANDBOX_ID; echo " $E2B_SANDBOX_ID"'), `${a.sandboxId} ${a.sandboxId}`)
  assert.equal(await run(b, 'echo $E2B_SANDBOX_ID'), b.sandboxId)
})

test('nothing is copied in full, and the template cannot be written', async () => {
  const { json } = await request('GET', `/templates`)
  const { buildID } = json.find((t) => t.aliases.includes('forks'))
  const build = path.join(dir, 'data/builds', buildID)
  const before_ = ['rootfs.img', 'memory', 'device-state', 'manifest.json'].map((f) => fs.statSync(path.join(build, f)).mtimeMs)
  await run(a, 'dd if=/dev/zero of=/tmp/big bs=1M count=20 2>/dev/null; sync; echo $((1))')
  const overlay = fs.statSync(path.join(dir, 'data/sandboxes', b.sandboxId, 'overlay.qcow2'))
  assert.ok(overlay.blocks * 512 < 8 << 20, `overlay of an idle fork: ${overlay.blocks * 512} bytes`)
  const pid = fs.readdirSync('/proc').find((p) => {
    try {
      const cmdline = /^\d+$/.test(p) && fs.readFileSync(`/proc/${p}/cmdline`, 'latin1')
      return cmdline && /qemu-system/.test(cmdline.split('\0')[0]) && cmdline.includes(`\0${b.sandboxId}\0`)
    } catch { return false }
  })
  const ram = fs.readFileSync(`/proc/${pid}/maps`, 'latin1').split('\n').filter((l) => /memfd|\/memory/.test(l))
  assert.ok(ram.length > 0)
  for (const line of ram) assert.match(line, /^\S+ [r-][w-][x-]p /, `a shared mapping: ${line}`)
  const status = fs.readFileSync(`/proc/${pid}/status`, 'latin1')
  assert.notEqual(/^Uid:\t(\d+)/m.exec(status)[1], '0', 'QEMU runs under its own uid')
  const others = fs.readdirSync('/proc').filter((p) => {
    try { return /^\d+$/.test(p) && fs.readFileSync(`/proc/${p}/cmdline`, 'latin1').includes(`\0${a.sandboxId}\0`) } catch { return false }
  }).map((p) => /^Uid:\t(\d+)/m.exec(fs.readFileSync(`/proc/${p}/status`, 'latin1'))[1])
  assert.ok(!others.includes(/^Uid:\t(\d+)/m.exec(status)[1]), 'one uid a VM')
  assert.deepEqual(['rootfs.img', 'memory', 'device-state', 'manifest.json'].map((f) => fs.statSync(path.join(build, f)).mtimeMs), before_)
})

test('one fork is not reachable from another, nor is the host', async () => {
  const target = await run(a, 'ip -4 -o addr show eth0 2>/dev/null || ifconfig eth0')
  assert.match(target, /169\.254\.0\.21/)
  await a.commands.run('busybox nc -ll -p 7777 -e /bin/cat >/dev/null 2>&1 &', { background: true })
  const blocked = await b.commands.run('for h in 10.200.0.1 10.200.0.2 127.0.0.1; do busybox nc -w 2 $h 7777 </dev/null >/dev/null 2>&1 && echo "reached $h"; done; true')
  assert.equal(blocked.stdout, '')
})
