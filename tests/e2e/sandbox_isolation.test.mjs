// THREAT-MODEL.md: what a compromised VMM process could do (issue 6, demand 7). A process with the uid, groups and rights of one sandbox's
// QEMU tries to reach what is another's or the server's.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { test, before, after } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, dir } from './lib.mjs'

const data = path.join(dir, 'data')
let one, two, paused

before(async () => {
  await busyboxTemplate()
  ;[one, two, paused] = await Promise.all([1, 2, 3].map(() => Sandbox.create('busybox', { timeoutMs: 300_000 })))
  await paused.pause()
})
after(() => Promise.all([one, two, paused].map((s) => s && Sandbox.kill(s.sandboxId))))

const qemu = (id) => fs.readdirSync('/proc').filter((p) => /^\d+$/.test(p)).find((p) => {
  try {
    const cmd = fs.readFileSync(`/proc/${p}/cmdline`, 'latin1').split('\0')
    return cmd[0].includes('qemu') && cmd.includes(id)
  } catch { return false }
})
const status = (pid) => Object.fromEntries(fs.readFileSync(`/proc/${pid}/status`, 'utf8').split('\n')
  .map((l) => l.split(':\t')).filter((p) => p.length === 2).map(([k, v]) => [k, v.trim()]))

test('the VMM has no capability, gains none, and runs under seccomp and a uid that no other VM has', () => {
  const [a, b] = [one, two].map((s) => status(qemu(s.sandboxId)))
  for (const s of [a, b]) {
    for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapAmb']) assert.equal(BigInt('0x' + s[set]), 0n, set)
    assert.equal(s.NoNewPrivs, '1')
    assert.equal(s.Seccomp, '2')
    assert.equal(s.Groups.replace(/\s/g, ''), '')
    assert.equal(new Set(s.Uid.split('\t')).size, 1)
    assert.notEqual(s.Uid.split('\t')[0], '0')
  }
  assert.notEqual(a.Uid, b.Uid)
  const network = (s) => fs.readlinkSync(`/proc/${qemu(s.sandboxId)}/ns/net`)
  assert.notEqual(network(one), network(two))
  assert.notEqual(network(one), fs.readlinkSync('/proc/self/ns/net'))
})

test('no file that one VMM can write is open in another', () => {
  const writable = (s) => {
    const pid = qemu(s.sandboxId)
    return fs.readdirSync(`/proc/${pid}/fd`).flatMap((n) => {
      const flags = parseInt(/flags:\s*(\d+)/.exec(fs.readFileSync(`/proc/${pid}/fdinfo/${n}`, 'utf8'))[1], 8)
      const st = fs.statSync(`/proc/${pid}/fd/${n}`)
      return (flags & 3) !== 0 && st.isFile() ? [`${st.dev}:${st.ino} ${fs.readlinkSync(`/proc/${pid}/fd/${n}`)}`] : []
    })
  }
  const a = writable(one), b = writable(two)
  assert.ok(a.some((f) => f.includes('overlay.qcow2')))
  // The template's memory is one sealed memfd: opened for writing by QEMU 7.2, and not to be written (tests/e2e/fork).
  assert.deepEqual(a.filter((f) => b.includes(f) && !f.includes('memfd:')), [])
})

test('as the uid of one VMM, nothing of another sandbox or of the server can be opened, traced or signalled', () => {
  const uid = status(qemu(one.sandboxId)).Uid.split('\t')[0]
  const as = (...argv) => spawnSync('setpriv', ['--reuid', uid, '--regid', uid, '--clear-groups', '--no-new-privs', '--inh-caps=-all',
    '--bounding-set=-all', ...argv], { encoding: 'utf8' })
  assert.equal(as('id', '-u').stdout.trim(), uid, 'the test itself works')
  assert.equal(as('cat', '/proc/version').status, 0)
  const own = path.join(data, 'sandboxes', one.sandboxId), other = path.join(data, 'sandboxes', two.sandboxId)
  const builds = fs.readdirSync(path.join(data, 'builds')).filter((n) => /^[0-9a-f-]{36}$/.test(n))
  const other_qemu = qemu(two.sandboxId)
  const files = ['vmon.db', 'vmon.db-wal', 'root-secret', 'cluster-token', 'default-key'].map((n) => path.join(data, n))
    .concat([own, other].flatMap((d) => ['overlay.qcow2', 'shim.sock', 'agent.sock'].map((n) => path.join(d, n))))
    .concat(['device-state', 'memory-delta', 'paused.json'].map((n) => path.join(data, 'sandboxes', paused.sandboxId, 'paused', n)))
    .concat(builds.flatMap((b) => ['memory', 'device-state', 'rootfs.img'].map((n) => path.join(data, 'builds', b, n))))
    .concat([`/proc/${other_qemu}/mem`, `/proc/${other_qemu}/environ`, `/proc/${other_qemu}/maps`])
  for (const file of files) {
    if (!fs.existsSync(file)) continue
    const read = as('head', '-c', '1', file), write = as('sh', '-c', `: >> "${file}"`)
    assert.notEqual(write.status, 0, `${file} can be written`)
    if (!/\/builds\//.test(file)) assert.notEqual(read.status, 0, `${file} can be read`)
  }
  for (const d of [own, other, path.join(data, 'sandboxes'), path.join(data, 'cache'), path.join(data, 'files')]) {
    if (fs.existsSync(d)) assert.notEqual(as('touch', path.join(d, 'planted')).status, 0, d)
  }
  assert.notEqual(as('kill', '-9', other_qemu).status, 0)
  const raw = as('/usr/bin/python3', '-c', 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)')
  assert.notEqual(raw.status, 0)
  assert.match(raw.stderr, /PermissionError/)
  const traced = as('/usr/bin/python3', '-c', `import ctypes; l = ctypes.CDLL(None, use_errno=True); l.ptrace.restype = ctypes.c_long
assert l.ptrace(16, ${other_qemu}, 0, 0) == -1 and ctypes.get_errno() == 1`) // PTRACE_ATTACH, EPERM
  assert.equal(traced.status, 0, traced.stderr)
})
