// Pausing and resuming (sandbox-api 9 to 12 and 21; issue 6, demand 3), with the unmodified SDK.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test, before } from 'node:test'
import { Sandbox, NotFoundError } from 'e2b'
import { busybox, dir, eventually, request, serve, template, traces, viaSandbox } from './lib.mjs'

const run = async (sandbox, cmd) => (await sandbox.commands.run(cmd)).stdout.trim()
const dataOf = (id) => path.join(dir, 'data/sandboxes', id)

before(() => template('counting', () => busybox().setStartCmd(
  'i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.1; done', '[ -e /tmp/count ]')))

const create = (options = {}) => Sandbox.create('counting', { timeoutMs: 600_000, ...options })

test('S36 S62 S67: a paused sandbox has no process and keeps memory, files, processes, identity and token', async () => {
  const idle = traces()
  const sandbox = await create({ metadata: { kept: 'yes' }, envs: { GREETING: 'hello' } })
  const id = sandbox.sandboxId
  await sandbox.files.write('/tmp/on-disk', 'kept')
  await run(sandbox, 'mkdir -p /dev/shm && echo in-memory > /dev/shm/kept; sleep 1000 > /dev/null 2>&1 & echo $! > /tmp/sleeper')
  const uptime = Number((await run(sandbox, 'cut -d" " -f1 /proc/uptime')))
  assert.equal(await sandbox.pause(), true)
  assert.deepEqual(traces(), idle, 'no process, no mount is left')
  const info = await Sandbox.getInfo(id)
  assert.equal(info.state, 'paused')
  assert.equal(info.metadata.kept, 'yes')
  assert.equal(await Sandbox.pause(id), false, 'paused already')
  assert.equal(await sandbox.isRunning(), false)

  const again = await Sandbox.connect(id, { timeoutMs: 600_000 })
  assert.equal((await again.getInfo()).state, 'running')
  assert.equal(await run(again, 'cat /tmp/on-disk /dev/shm/kept'), 'keptin-memory')
  assert.equal(await run(again, 'kill -0 $(cat /tmp/sleeper) && echo alive'), 'alive')
  assert.equal(await run(again, 'echo $GREETING $E2B_SANDBOX_ID'), `hello ${id}`)
  assert.ok(Number(await run(again, 'cut -d" " -f1 /proc/uptime')) >= uptime, 'the guest has not booted')
  const count = Number(await run(again, 'cat /tmp/count'))
  await eventually(async () => Number(await run(again, 'cat /tmp/count')) > count)
  assert.equal(await again.kill(), true)
  assert.equal(fs.existsSync(dataOf(id)), false)
})

test('the clock is right and the network works after a resume', async () => {
  const sandbox = await create()
  await sandbox.pause()
  await new Promise((r) => setTimeout(r, 2500)) // time has to pass while it stands still
  const again = await Sandbox.connect(sandbox.sandboxId)
  const skew = Math.abs(Number(await run(again, 'date +%s')) - Date.now() / 1000)
  assert.ok(skew < 2, `clock is off by ${skew} s`)
  assert.match(await run(again, 'ip addr show eth0'), /169\.254\.0\.21/)
  const listening = await again.commands.run(
    `while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nanswered' | nc -l -p 8123; done`, { background: true })
  const answer = await eventually(async () => {
    const r = await request('GET', '/', { headers: viaSandbox(again.sandboxId, 8123), key: null })
    return r.status === 200 && r
  })
  assert.equal(answer.body, 'answered')
  await listening.kill()
  await again.kill()
})

test('pausing again and again keeps what each life changed', async () => {
  let sandbox = await create()
  const id = sandbox.sandboxId
  for (let i = 1; i <= 3; i++) {
    await run(sandbox, `mkdir -p /dev/shm; head -c ${i}000000 /dev/urandom > /dev/shm/life-${i}; sha256sum < /dev/shm/life-${i} > /tmp/sum-${i}`)
    await sandbox.pause()
    sandbox = await Sandbox.connect(id)
  }
  for (let i = 1; i <= 3; i++) assert.equal(await run(sandbox, `sha256sum < /dev/shm/life-${i} | cmp - /tmp/sum-${i} && echo same`), 'same')
  await sandbox.kill()
})

test('lists show paused sandboxes by state', async () => {
  const [one, two] = await Promise.all([create({ metadata: { test: 'states' } }), create({ metadata: { test: 'states' } })])
  await one.pause()
  const ids = async (state) => (await Sandbox.list({ query: { metadata: { test: 'states' }, state } }).nextItems()).map((s) => `${s.sandboxId} ${s.state}`)
  assert.deepEqual(await ids(['paused']), [`${one.sandboxId} paused`])
  assert.deepEqual(await ids(['running']), [`${two.sandboxId} running`])
  assert.equal((await ids(['running', 'paused'])).length, 2)
  assert.equal((await request('GET', '/sandboxes?metadata=test%3Dstates')).json.length, 1, 'v1 lists what runs')
  assert.equal((await request('POST', `/sandboxes/${one.sandboxId}/timeout`, { body: { timeout: 60 } })).status, 404)
  assert.equal(await Sandbox.kill(one.sandboxId), true, 'a paused one is killed without being resumed')
  assert.equal(fs.existsSync(dataOf(one.sandboxId)), false)
  await assert.rejects(Sandbox.connect(one.sandboxId), NotFoundError)
  await two.kill()
})

test('S63 S68: of many connects to a paused sandbox one resumes it; of many pauses one pauses it', async () => {
  const sandbox = await create()
  const path = `/sandboxes/${sandbox.sandboxId}`
  const pauses = await Promise.all([1, 2, 3].map(() => request('POST', `${path}/pause`)))
  assert.deepEqual(pauses.map((r) => r.status).sort(), [204, 409, 409])
  assert.match(pauses.find((r) => r.status === 409).json.message, /Error pausing sandbox - sandbox '.*' is already paused/)
  const connects = await Promise.all([1, 2, 3, 4].map(() => request('POST', `/v2${path}/connect`, { body: { timeout: 120 } })))
  assert.deepEqual(connects.map((r) => r.status).sort(), [200, 200, 200, 201])
  assert.equal((await request('POST', `${path}/resume`, { body: {} })).status, 409)
  assert.equal((await request('POST', `${path}/pause`)).status, 204)
  const resumed = await request('POST', `${path}/resume`, { body: { timeout: 60 } })
  assert.equal(resumed.status, 201)
  assert.ok(resumed.json.envdAccessToken)
  assert.equal((await request('DELETE', path)).status, 204)
  assert.equal((await request('POST', `${path}/pause`)).status, 404)
  assert.equal((await request('POST', `${path}/resume`, { body: {} })).status, 404)
})

test('a sandbox with onTimeout pause is paused at its end, not ended', async () => {
  const sandbox = await create({ timeoutMs: 3_000, lifecycle: { onTimeout: 'pause' } })
  assert.equal((await sandbox.getInfo()).state, 'running')
  await eventually(async () => (await Sandbox.getInfo(sandbox.sandboxId)).state === 'paused', 30)
  assert.equal(await sandbox.isRunning(), false, 'traffic does not resume it: that was not asked for')
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60_000 })
  assert.ok(Number(await run(again, 'cat /tmp/count')) > 0)
  await again.kill()
})

test('S112 S113 S114: traffic resumes a paused sandbox with autoResume, given the right token', async () => {
  const sandbox = await create({ lifecycle: { onTimeout: 'pause', autoResume: true } })
  const id = sandbox.sandboxId
  await sandbox.pause()
  const refused = await request('GET', '/files?path=/tmp/count', { headers: viaSandbox(id, 49983), key: null })
  assert.equal(refused.status, 403)
  assert.match(refused.body, /can't be resumed with the credentials provided/)
  assert.equal((await Sandbox.getInfo(id)).state, 'paused')
  const [count, more] = await Promise.all([run(sandbox, 'cat /tmp/count'), run(sandbox, 'echo also')]) // both arrive while it is paused
  assert.ok(Number(count) > 0)
  assert.equal(more, 'also')
  const info = await Sandbox.getInfo(id)
  assert.equal(info.state, 'running')
  assert.ok(info.endAt.getTime() - Date.now() > 290_000)
  await sandbox.kill()
})

test('paused sandboxes survive a killed server; what is cut off goes on or is paused', async () => {
  const sandbox = await create()
  const id = sandbox.sandboxId
  await run(sandbox, 'echo kept > /tmp/kept')
  await sandbox.pause()
  serve('kill')
  serve('start')
  const found = await eventually(() => request('GET', `/sandboxes/${id}`).catch(() => null)) // connections of before are gone
  assert.equal(found.json.state, 'paused')
  const again = await Sandbox.connect(id)
  assert.equal(await run(again, 'cat /tmp/kept'), 'kept')
  assert.equal(await again.kill(), true)
})

test('damaged saved memory is one clear error, and the sandbox stays paused', async () => {
  const sandbox = await create()
  const id = sandbox.sandboxId
  await sandbox.pause()
  const file = path.join(dataOf(id), 'paused/memory-delta')
  const whole = fs.readFileSync(file)
  const bad = Buffer.from(whole)
  bad[8192] ^= 1
  fs.writeFileSync(file, bad)
  const r = await request('POST', `/v2/sandboxes/${id}/connect`, { body: { timeout: 60 } })
  assert.equal(r.status, 500)
  assert.match(r.json.message, /stays paused.*damaged/)
  assert.equal((await Sandbox.getInfo(id)).state, 'paused')
  fs.writeFileSync(file, whole)
  const again = await Sandbox.connect(id)
  assert.ok(Number(await run(again, 'cat /tmp/count')) > 0)
  await again.kill()
})
