// Many sandboxes, and harmful ones (issue 6, demand 8): what a server holds is flat, and a guest harms only itself.
// VMON_SOAK=1: 500 cycles of create and kill instead of 40.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { dir, eventually, machineProcesses } from './lib.mjs'
import { api, holdings, processes, settled, startServer, threads } from './server.mjs'

const root = path.join(dir, 'load')
let server, idle

before(async () => {
  fs.rmSync(root, { recursive: true, force: true })
  server = await startServer(root, 'main')
  const [team] = JSON.parse(server.admin('list-teams', '--json'))
  server.admin('set-limits', team.slug, '--max-disk-mb', '512') // a disk that is filled in seconds
  const build = await api(server).build('load', { startCmd: 'sleep 100000', readyCmd: 'true' })
  assert.equal((await api(server).finished(build)).status, 'ready')
  server.admin('gc')
  await (await create()).kill() // what is loaded once is loaded
  await eventually(() => machineProcesses(server.data).length === 0)
  idle = holdings(server)
})
after(async () => {
  await server?.stop()
  for (const pid of machineProcesses(path.join(root, 'main/data'))) try { process.kill(pid) } catch { /* has ended */ }
  fs.rmSync(root, { recursive: true, force: true })
})

const guard = { timeout: 600_000 }
const create = () => Sandbox.create('load', { ...server.connection, sandboxUrl: server.connection.apiUrl, timeoutMs: 600_000, requestTimeoutMs: 300_000 })
const run = async (sandbox, command, options) => (await sandbox.commands.run(command, { timeoutMs: 300_000, requestTimeoutMs: 300_000, ...options })).stdout.trim()

// When the last sandbox has gone, everything is as before the first.
async function flat() {
  const left = await settled(server, idle)
  assert.ok(left.kilobytes <= idle.kilobytes + 1024, `disk: ${idle.kilobytes} kB before, ${left.kilobytes} kB now`)
  return left
}

test('50 creates at once are 50 sandboxes, and the server answers meanwhile', guard, async (t) => {
  let answers = 0, creating = true
  const asking = (async () => {
    while (creating) {
      assert.equal((await fetch(`${server.connection.apiUrl}/health`)).status, 200)
      answers++
    }
  })()
  const sandboxes = await Promise.all(Array.from({ length: 50 }, create))
  creating = false
  await asking
  assert.ok(answers > 0)
  const drawn = await Promise.all(sandboxes.map((s) => run(s, 'cat /proc/sys/kernel/random/uuid; echo $E2B_SANDBOX_ID')))
  assert.deepEqual(drawn.map((text) => text.split('\n')[1]), sandboxes.map((s) => s.sandboxId))
  assert.equal(new Set(drawn.map((text) => text.split('\n')[0])).size, 50)
  assert.equal((await api(server).call('GET', '/v2/sandboxes?limit=100')).json.length, 50)
  for (const killed of await Promise.all(sandboxes.map((s) => s.kill()))) assert.equal(killed, true)
  t.diagnostic(JSON.stringify({ idle, left: await flat() }))
})

const resident = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${server.pid}/status`, 'utf8'))[1])

test('cycles of create and kill leave descriptors, processes, threads, files and memory flat', { timeout: 3_600_000 }, async (t) => {
  const cycles = process.env.VMON_SOAK ? 500 : 40, warm = 10
  let resident_kb, tasks
  for (let i = 0; i < cycles; i++) {
    const sandbox = await create()
    assert.equal(await sandbox.kill(), true)
    if (i === warm) [resident_kb, tasks] = [resident(), threads(server)]
  }
  const left = await flat(), grown = resident() - resident_kb
  t.diagnostic(JSON.stringify({ cycles, resident_kb, grown_kb: grown, left }))
  assert.ok(grown < 2048, `${grown} kB more resident after ${cycles - warm} cycles`)
  assert.ok(threads(server) <= tasks + 1)
})

// Each harm is done to its sandbox; `then` looks at it before it is killed. The neighbour must work on, and nothing stay.
async function harms(harm) {
  const [victim, neighbour] = await Promise.all([create(), create()])
  await harm(victim)
  assert.equal(await run(neighbour, 'echo works > /tmp/file; cat /tmp/file'), 'works')
  const another = await create()
  assert.equal(await run(another, 'echo too'), 'too')
  await Promise.all([victim, neighbour, another].map((s) => s.kill()))
  await flat()
}

const shimOf = (sandbox) => processes(sandbox.sandboxId).find(([, line]) => /vmon-shim/.test(line))[0]

test('a guest that floods its console keeps the last of it, and its supervisor does not grow', guard, () => harms(async (victim) => {
  const memory = () => Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${shimOf(victim)}/status`, 'utf8'))[1])
  const flood = (n) => run(victim, `yes ${'flood'.repeat(20)} | head -c ${n} > /dev/console; echo the-end-of-${n} > /dev/console`, { user: 'root' })
  await flood(1 << 18)
  const before = memory()
  await flood(2 << 20)
  assert.ok(memory() < before + 1024, `${before} kB before, ${memory()} kB now`)
  assert.match(server.admin('console', victim.sandboxId), /the-end-of-2097152/)
  assert.ok(server.admin('console', victim.sandboxId).length < 1 << 20)
}))

test('a guest that fills its disk gets ENOSPC, and works on when it has made room', guard, () => harms(async (victim) => {
  const full = await victim.commands.run('dd if=/dev/zero of=/fill bs=1M; rm /fill', { user: 'root', timeoutMs: 300_000, requestTimeoutMs: 300_000 })
  assert.match(full.stderr, /No space left on device/)
  assert.equal(await run(victim, 'echo room > /tmp/room; cat /tmp/room'), 'room')
}))

test('a fork bomb stays in its guest', guard, () => harms(async (victim) => {
  await victim.commands.run('bomb() { bomb | bomb & }; bomb', { background: true })
  // It has taken hold when the guest has hundreds of processes, or is too busy to say so.
  await eventually(() => victim.commands.run('ls /proc', { requestTimeoutMs: 2_000, timeoutMs: 2_000 })
    .then(({ stdout }) => stdout.split('\n').filter((p) => /^\d+$/.test(p)).length > 300, () => true))
}))

test('a guest that panics is an ended sandbox', guard, () => harms(async (victim) => {
  await victim.commands.run('echo c > /proc/sysrq-trigger', { user: 'root', background: true }).catch(() => {}) // it ends before it answers, or after
  await eventually(async () => !(await victim.isRunning()))
  assert.equal((await api(server).call('GET', `/sandboxes/${victim.sandboxId}`)).status, 404)
}))
