// The warm pool (issue 7, demands 2 and 6): sandboxes that were kept ready are like those that were not, and nothing of them is lost or shared.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { dir, eventually, machineProcesses } from './lib.mjs'
import { api, startServer } from './server.mjs'

const root = path.join(dir, 'pool')
let server

const start = () => startServer(root, 'main', { options: ['--pool', '3', '--log-level', 'debug'] })

before(async () => {
  fs.rmSync(root, { recursive: true, force: true })
  server = await start()
  const build = await api(server).build('pool', {
    startCmd: 'i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.1; done', readyCmd: '[ -e /tmp/count ]',
  })
  assert.equal((await api(server).finished(build)).status, 'ready')
})
after(async () => {
  await server?.stop()
  for (const pid of machineProcesses(path.join(root, 'main/data'))) try { process.kill(pid) } catch { /* has ended */ }
  fs.rmSync(root, { recursive: true, force: true })
})

const guard = { timeout: 600_000 }
const create = (options = {}) => Sandbox.create('pool', { ...server.connection, sandboxUrl: server.connection.apiUrl, timeoutMs: 600_000, ...options })
const run = async (sandbox, command, options) => (await sandbox.commands.run(command, options)).stdout.trim()
const machines = () => fs.readdirSync(path.join(server.data, 'sandboxes'))
// The ids of those that stand ready: made by the pool, not listed, not used.
const ready = () => [...server.log().matchAll(/pool: sandbox (\w+) of build \S+ is ready/g)].map((m) => m[1]).filter((id) => machines().includes(id))

// Sandboxes of the pool, as many as asked for.
async function pooled(n, options) {
  const sandboxes = []
  for (let i = 0; i < n; i++) {
    const waiting = await eventually(() => ready().filter((id) => !sandboxes.some((s) => s.sandboxId === id) && !used.has(id)).length > 0 && ready())
    const sandbox = await create(options)
    used.add(sandbox.sandboxId)
    assert.ok(waiting.includes(sandbox.sandboxId), `${sandbox.sandboxId} is one of ${waiting}`)
    sandboxes.push(sandbox)
  }
  return sandboxes
}
const used = new Set()

test('a sandbox of the pool is its user\'s alone: identity, environment, token, random numbers, clock', guard, async () => {
  const first = await create({ envs: { MINE: 'first' } }) // from the snapshot; it is wanted from now on
  used.add(first.sandboxId)
  const [one, two] = await pooled(2, { envs: { MINE: 'mine' }, metadata: { kept: 'yes' } })
  const all = [first, one, two]
  for (const sandbox of all) {
    assert.equal(await run(sandbox, 'echo $E2B_SANDBOX_ID'), sandbox.sandboxId)
    assert.ok(Math.abs(Number(await run(sandbox, 'date +%s')) - Date.now() / 1000) < 2)
    assert.equal(await run(sandbox, 'ls -A /home/user; cat /proc/sys/kernel/hostname'), await run(first, 'ls -A /home/user; cat /proc/sys/kernel/hostname'))
  }
  assert.deepEqual(await Promise.all(all.map((s) => run(s, 'echo $MINE'))), ['first', 'mine', 'mine'])
  assert.equal((await one.getInfo()).metadata.kept, 'yes')
  const drawn = await Promise.all(all.map((s) => run(s, 'cat /proc/sys/kernel/random/uuid; head -c 16 /dev/urandom | od -An -tx1')))
  assert.equal(new Set(drawn.flatMap((text) => text.split('\n'))).size, 6)
  const tokens = new Set(all.map((s) => s.envdAccessToken))
  assert.equal(tokens.size, 3)
  const wrong = await fetch(`${server.connection.apiUrl}/files?path=/etc/hostname`, {
    headers: { 'E2b-Sandbox-Id': one.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': two.envdAccessToken },
  })
  assert.equal(wrong.status, 401)
  await Promise.all(all.map((s) => s.kill()))
})

test('the start command of a sandbox of the pool has stood still until it was somebody\'s', guard, async () => {
  const [sandbox] = await pooled(1)
  const before = Number(await run(sandbox, 'cat /tmp/count'))
  await eventually(async () => Number(await run(sandbox, 'cat /tmp/count')) > before)
  const other = (await pooled(1))[0]
  // Each has run since its own hand-over only: the one that waited longer has not counted further by that.
  assert.ok(Number(await run(other, 'cat /tmp/count')) < before + 100)
  await Promise.all([sandbox.kill(), other.kill()])
})

test('egress rules hold in a sandbox of the pool, and it pauses, resumes and is copied like any', guard, async () => {
  const [sandbox] = await pooled(1, { allowInternetAccess: false })
  assert.equal((await sandbox.commands.run('nc -w 2 192.0.2.1 80 < /dev/null').catch((e) => e)).exitCode, 1)
  await run(sandbox, 'echo kept > /tmp/kept')
  await sandbox.pause()
  const again = await Sandbox.connect(sandbox.sandboxId, { ...server.connection, sandboxUrl: server.connection.apiUrl })
  assert.equal(await run(again, 'cat /tmp/kept'), 'kept')
  assert.equal(await again.kill(), true)
})

test('what waits is not listed, dies with the server, and a killed server\'s is removed at the next start', guard, async () => {
  await eventually(() => ready().some((id) => !used.has(id)))
  assert.deepEqual((await api(server).call('GET', '/v2/sandboxes')).json, [])
  const waiting = ready()
  process.kill(server.pid, 'SIGKILL')
  await server.stop()
  assert.ok(machineProcesses(server.data).length > 0, 'the machines live on')
  server = await start()
  for (const id of waiting) assert.equal(machines().includes(id), false)
  const sandbox = await create()
  assert.equal(await run(sandbox, 'echo works'), 'works')
  await sandbox.kill()
  await eventually(() => machines().length === 1)
  await server.stop()
  assert.deepEqual(machines(), [], 'a server that ends in order takes its pool with it')
  server = await start()
})
