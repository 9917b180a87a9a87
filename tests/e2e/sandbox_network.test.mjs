// What a sandbox may reach (sandbox-api 13; issue 6, demand 4), by the SDK, as the rules in the kernel. What the rules do to packets is
// tests/vm/test_net.sh's.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { lookup } from 'node:dns/promises'
import fs from 'node:fs'
import { test, before } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, request, serve, eventually } from './lib.mjs'

before(busyboxTemplate)

const processes = () => fs.readdirSync('/proc').filter((p) => /^\d+$/.test(p))
const machine = (id) => processes().find((p) => {
  try {
    const cmd = fs.readFileSync(`/proc/${p}/cmdline`, 'latin1').split('\0')
    return cmd[0].includes('qemu') && cmd.includes(id)
  } catch { return false }
})

// The rules of the namespace that the sandbox's machine is in, from the internal ranges on.
function rules(id) {
  const pid = machine(id)
  const text = execFileSync('nsenter', ['-t', pid, '-n', 'nft', 'list', 'chain', 'ip', 'vmon', 'forward']).toString()
  return text.split('\n').map((l) => l.trim()).filter((l) => /^ip daddr [^{]* (accept|drop)$|^drop$|^accept$/.test(l) && !/ dport /.test(l))
}
const everything = (lines) => lines.some((l) => /^(ip daddr 0\.0\.0\.0\/0 )?drop$/.test(l))

test('S83 S85: allowInternetAccess: false, changed while it runs, kept over a pause, a restart and in forks', async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 300_000, allowInternetAccess: false })
  const id = sandbox.sandboxId
  assert.ok(everything(rules(id)), rules(id).join('\n'))
  assert.equal((await request('GET', `/sandboxes/${id}`)).json.allowInternetAccess, false)
  assert.equal((await sandbox.commands.run('echo reached')).stdout, 'reached\n', 'its agent and ports are')

  const denied = { allowOut: ['9.9.9.9', '8.8.0.0/16'], denyOut: ['0.0.0.0/0'] }
  assert.equal((await request('PUT', `/sandboxes/${id}/network`, { body: denied })).status, 204)
  const wanted = ['ip daddr 9.9.9.9 accept', 'ip daddr 8.8.0.0/16 accept']
  const check = (of) => {
    assert.deepEqual(rules(of).slice(0, 2), wanted)
    assert.ok(everything(rules(of)))
  }
  check(id)
  const shown = (await request('GET', `/sandboxes/${id}`)).json
  assert.deepEqual([shown.network.allowOut, shown.network.denyOut, shown.allowInternetAccess], [denied.allowOut, denied.denyOut, null])
  const [fork] = await sandbox.fork()
  check(fork.sandboxId)
  await fork.kill()
  await sandbox.pause()
  assert.equal((await request('PUT', `/sandboxes/${id}/network`, { body: {} })).status, 409)
  serve('kill')
  serve('start')
  const again = await eventually(() => Sandbox.connect(id).catch(() => null))
  check(id)
  assert.equal((await request('PUT', `/sandboxes/${id}/network`, { body: {} })).status, 204)
  assert.ok(!everything(rules(id)), '{} opens everything')
  await again.kill()
})

// Who reads the names in the namespace of the sandbox's machine.
function egressPids(id) {
  const namespace = (p) => fs.readlinkSync(`/proc/${p}/ns/net`)
  const wanted = namespace(machine(id))
  return processes().filter((p) => {
    try {
      return fs.readFileSync(`/proc/${p}/comm`, 'utf8') === 'vmon-egress\n' && namespace(p) === wanted
    } catch { return false }
  })
}

test('S87 domains: by the name that a connection asks for, whoever reads it dies or the sandbox pauses', async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 300_000, network: { allowOut: ['deb.debian.org'], denyOut: ['0.0.0.0/0'] } })
  const id = sandbox.sandboxId
  // Nothing is at 203.0.113.9, and the static busybox has no resolver of its own: the name decides, not the address.
  const fetch = async (host) => (await sandbox.commands.run(
    // the sending half stays open: the mirror takes the end of it for a cancelled request
    `rm -f f; mkfifo f; exec 3<>f; printf 'GET /debian/dists/stable/Release HTTP/1.1\\r\\nHost: ${host}\\r\\nConnection: close\\r\\n\\r\\n' >&3; nc -w 30 203.0.113.9 80 <f | grep Origin; true`, { timeoutMs: 60_000 })).stdout
  assert.deepEqual(egressPids(id), [], 'nothing runs for who asks for nothing')
  assert.equal(await fetch('deb.debian.org'), 'Origin: Debian\n')
  assert.equal(await fetch('other.example'), '')
  assert.equal(await fetch('www.debian.org'), '')
  assert.match((await sandbox.commands.run('nslookup deb.debian.org')).stdout, /Address.*\d+\.\d+\.\d+\.\d+/, 'names resolve')
  const [pid, ...more] = egressPids(id)
  assert.deepEqual(more, [])
  process.kill(Number(pid), 'SIGKILL')
  await eventually(() => !fs.existsSync(`/proc/${pid}`))
  assert.equal(await fetch('deb.debian.org'), 'Origin: Debian\n')
  await sandbox.pause()
  await Sandbox.connect(id)
  assert.equal(await fetch('deb.debian.org'), 'Origin: Debian\n')
  assert.equal((await request('PUT', `/sandboxes/${id}/network`, { body: { allowOut: ['*.debian.org'], denyOut: ['0.0.0.0/0'] } })).status, 204)
  assert.equal(await fetch('deb.debian.org'), 'Origin: Debian\n')
  assert.equal((await request('PUT', `/sandboxes/${id}/network`, { body: { denyOut: ['0.0.0.0/0'] } })).status, 204)
  await eventually(() => egressPids(id).length === 0)
  await sandbox.kill()
})

test('S89: new rules are for new connections', async () => {
  const { address } = await lookup('deb.debian.org', 4)
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 300_000 })
  // One connection, kept open by the pipe; each line of it is a request.
  await sandbox.commands.run('mkfifo ask')
  await sandbox.commands.run(`exec 3<>ask; nc ${address} 80 <ask >answers`, { background: true, timeoutMs: 0 })
  const ask = () => sandbox.commands.run(`printf 'HEAD /debian/dists/stable/Release HTTP/1.1\\r\\nHost: deb.debian.org\\r\\n\\r\\n' > ask`)
  const answers = (n) => eventually(async () => Number((await sandbox.commands.run('grep -c "^HTTP/1.1 200" answers || true')).stdout) === n)
  await ask()
  await answers(1)
  assert.equal((await request('PUT', `/sandboxes/${sandbox.sandboxId}/network`, { body: { denyOut: ['0.0.0.0/0'] } })).status, 204)
  await ask()
  await answers(2)
  assert.match((await sandbox.commands.run(`nc -w 3 ${address} 80 < /dev/null 2>&1; true`)).stdout, /timed out|unreachable|refused/i)
  await sandbox.kill()
})

test('what cannot be enforced is refused', async () => {
  const create = (network, more = {}) => request('POST', '/v2/sandboxes', { body: { templateID: 'busybox', network, ...more } })
  for (const [network, pattern] of [
    [{ allowOut: ['https://example.com'], denyOut: ['0.0.0.0/0'] }, /^invalid allowed address or domain https/],
    [{ denyOut: ['example.com'] }, /^invalid denied CIDR example.com/],
    [{ rules: { 'a.com': [{ transform: { headers: { a: 'b' } } }] } }, /header transforms are not available/],
    [{ maskRequestHost: 'a.com\r\nX: y' }, /invalid maskRequestHost/], [{ maskRequestHost: '' }, /invalid maskRequestHost/],
  ]) {
    const r = await create(network)
    assert.equal(r.status, 400, JSON.stringify(network))
    assert.match(r.json.message, pattern)
  }
})
