// `--network user`, by a server that is not root: build, use, reach ports, pause, fork (issue 6, demand 4; design 6).
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox, Template } from 'e2b'
import { busybox, eventually } from './lib.mjs'
import { startServer } from './server.mjs'

const guard = { timeout: 600_000 }
const NOBODY = 65534
let root, server, options

before(async () => {
  root = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-user-'))
  fs.chmodSync(root, 0o755)
  for (const name of ['vmon', 'vmon-shim', 'vmon-egress', 'vmon-agent']) {
    const from = path.join(path.dirname(process.env.VMON), name)
    if (fs.existsSync(from)) fs.copyFileSync(from, path.join(root, name))
  }
  fs.mkdirSync(path.join(root, 'user'))
  fs.chownSync(path.join(root, 'user'), NOBODY, NOBODY)
  server = await startServer(root, 'user', { program: path.join(root, 'vmon'), uid: NOBODY, options: ['--network', 'user'] })
  options = { ...server.connection, sandboxUrl: server.connection.apiUrl }
  await Template.build(busybox().runCmd('echo built > /home/user/built').setStartCmd(
    `while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nserved' | nc -l -p 8000; done`, 'sleep 1'), 'plain', { cpuCount: 1, memoryMB: 512, ...server.connection })
}, guard)
after(async () => {
  for (const s of await Sandbox.list(options).nextItems()) await Sandbox.kill(s.sandboxId, options)
  await server.stop()
  fs.rmSync(root, { recursive: true, force: true })
})

const serve = async (sandbox, port) => {
  const r = await fetch(server.connection.apiUrl + '/', { headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': String(port) } })
  return { status: r.status, body: await r.text() }
}

test('commands, files and ports of a sandbox, over a pause, and of its forks', guard, async () => {
  assert.equal(fs.statSync(path.join(server.data, 'vmon.db')).uid, NOBODY)
  const sandbox = await Sandbox.create('plain', { timeoutMs: 600_000, ...options })
  assert.equal((await sandbox.commands.run('cat built; id -un')).stdout, 'built\nuser\n')
  await sandbox.files.write('a.txt', 'x'.repeat(1_000_000))
  assert.equal((await sandbox.files.read('a.txt')).length, 1_000_000)
  assert.equal((await eventually(async () => { const r = await serve(sandbox, 8000); return r.status === 200 && r })).body, 'served')
  assert.equal((await serve(sandbox, 8001)).status, 502, 'nobody listens')
  assert.equal((await Promise.all([...Array(8)].map(() => sandbox.commands.run('echo at once')))).map((r) => r.stdout).join(''), 'at once\n'.repeat(8))
  const forks = await sandbox.fork({ count: 2, ...options })
  for (const [i, f] of forks.entries()) await f.commands.run(`echo ${i} > which`)
  for (const [i, f] of forks.entries()) assert.equal((await f.commands.run('cat which')).stdout, `${i}\n`)
  for (const f of forks) await f.kill()
  await sandbox.pause()
  const again = await Sandbox.connect(sandbox.sandboxId, options)
  assert.equal((await again.commands.run('cat built')).stdout, 'built\n')
  assert.equal((await eventually(async () => { const r = await serve(again, 8000); return r.status === 200 && r })).body, 'served')
  await again.kill()
})

test('what cannot be restricted is refused', guard, async () => {
  await assert.rejects(Sandbox.create('plain', { allowInternetAccess: false, ...options }), /--network user/)
})
