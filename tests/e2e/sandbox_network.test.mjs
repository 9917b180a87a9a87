// What a sandbox may reach (sandbox-api 13; issue 6, demand 4), by the SDK, as the rules in the kernel. What the rules do to packets is
// tests/vm/test_net.sh's.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import { test, before } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, request, serve, eventually } from './lib.mjs'

before(busyboxTemplate)

// The rules of the namespace that the sandbox's machine is in, from the internal ranges on.
function rules(id) {
  const pid = fs.readdirSync('/proc').filter((p) => /^\d+$/.test(p)).find((p) => {
    try {
      const cmd = fs.readFileSync(`/proc/${p}/cmdline`, 'latin1').split('\0')
      return cmd[0].includes('qemu') && cmd.includes(id)
    } catch { return false }
  })
  const text = execFileSync('nsenter', ['-t', pid, '-n', 'nft', 'list', 'chain', 'ip', 'vmon', 'forward']).toString()
  return text.split('\n').map((l) => l.trim()).filter((l) => /^ip daddr [^{]* (accept|drop)$|^drop$|^accept$/.test(l) && !/ dport /.test(l))
}
const everything = (lines) => lines.some((l) => /^(ip daddr 0\.0\.0\.0\/0 )?drop$/.test(l))

test('allowInternetAccess: false, changed while it runs, kept over a pause, a restart and in forks', async () => {
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

test('what cannot be enforced is refused', async () => {
  const create = (network, more = {}) => request('POST', '/v2/sandboxes', { body: { templateID: 'busybox', network, ...more } })
  for (const [network, pattern] of [
    [{ allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] }, /by domain.*not available/],
    [{ denyOut: ['example.com'] }, /^invalid denied CIDR example.com/],
    [{ rules: { 'a.com': [{ transform: { headers: { a: 'b' } } }] } }, /header transforms are not available/],
    [{ maskRequestHost: 'a.com\r\nX: y' }, /invalid maskRequestHost/], [{ maskRequestHost: '' }, /invalid maskRequestHost/],
  ]) {
    const r = await create(network)
    assert.equal(r.status, 400, JSON.stringify(network))
    assert.match(r.json.message, pattern)
  }
})
