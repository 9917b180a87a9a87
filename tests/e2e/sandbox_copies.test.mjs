// Forks of a running sandbox and snapshots of it (sandbox-api 14 and 15; issue 6, demand 2), with the unmodified SDK.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test, before, after } from 'node:test'
import { Sandbox, Template } from 'e2b'
import { busybox, dir, eventually, request, template } from './lib.mjs'

const run = async (sandbox, cmd) => (await sandbox.commands.run(cmd)).stdout.trim()
const TICK = 'while true; do echo $(( $(cat /dev/shm/count 2>/dev/null || echo 0) + 1 )) > /dev/shm/next; mv /dev/shm/next /dev/shm/count; sleep 0.1; done'
const saved = (id) => path.join(dir, 'data/sandboxes', id, 'saved')
let origin

before(async () => {
  await template('ticking', () => busybox().setStartCmd(`mkdir -p /dev/shm; ${TICK}`, '[ -s /dev/shm/count ]'))
  origin = await Sandbox.create('ticking', { timeoutMs: 600_000, metadata: { of: 'origin' }, envs: { GREETING: 'hello' } })
  await origin.files.write('/tmp/on-disk', 'before')
  await run(origin, 'echo in-memory > /dev/shm/kept')
})
after(() => origin?.kill())

const goesOn = async (sandbox) => {
  const count = Number(await run(sandbox, 'cat /dev/shm/count'))
  await eventually(async () => Number(await run(sandbox, 'cat /dev/shm/count')) > count)
}

test('S90 S91: forks have the memory, files, processes and metadata of the moment and an identity of their own', async () => {
  const before = Number(await run(origin, 'cat /dev/shm/count'))
  const forks = await origin.fork({ count: 2, timeoutMs: 120_000 })
  assert.equal(forks.length, 2)
  assert.equal(fs.existsSync(saved(origin.sandboxId)), false)
  const ids = new Set([origin.sandboxId, ...forks.map((f) => f.sandboxId)])
  assert.equal(ids.size, 3)
  const uuids = new Set()
  for (const fork of forks) {
    assert.equal(await run(fork, 'cat /tmp/on-disk /dev/shm/kept'), 'beforein-memory')
    assert.equal(await run(fork, 'echo $GREETING $E2B_SANDBOX_ID'), `hello ${fork.sandboxId}`)
    assert.ok(Number(await run(fork, 'cat /dev/shm/count')) >= before)
    await goesOn(fork)
    uuids.add(await run(fork, 'cat /proc/sys/kernel/random/uuid'))
    const info = await fork.getInfo()
    assert.equal(info.metadata.of, 'origin')
    assert.ok(info.endAt.getTime() - Date.now() < 121_000, 'a time of its own')
  }
  assert.equal(uuids.size, 2)
  await forks[0].files.write('/tmp/on-disk', 'changed')
  assert.equal(await forks[1].files.read('/tmp/on-disk'), 'before')
  assert.equal(await origin.files.read('/tmp/on-disk'), 'before')
  await goesOn(origin)
  const again = await forks[0].fork() // a fork of a fork, and pausing one
  assert.equal(await again[0].files.read('/tmp/on-disk'), 'changed')
  await again[0].pause()
  assert.equal(await (await Sandbox.connect(again[0].sandboxId)).files.read('/tmp/on-disk'), 'changed')
  await Promise.all([...forks, again[0]].map((f) => f.kill()))
})

test('S92: fork refuses what it must', async () => {
  const at = (id) => `/sandboxes/${id}/fork`
  assert.equal((await request('POST', at(origin.sandboxId), { body: { count: 0 } })).status, 400)
  assert.equal((await request('POST', at(origin.sandboxId), { body: { count: 101 } })).status, 400)
  assert.equal((await request('POST', at('inone00000000000000000'))).status, 404)
  const paused = await Sandbox.create('ticking')
  await paused.pause()
  const refused = await request('POST', at(paused.sandboxId), { body: {} })
  assert.equal(refused.status, 409)
  assert.match(refused.json.message, /paused and cannot be forked; resume it first/)
  await Sandbox.kill(paused.sandboxId)
})

test('S60 S94 S98: an unnamed snapshot starts sandboxes that go on from it, also when its origin is gone', async () => {
  const sandbox = await Sandbox.create('ticking', { timeoutMs: 120_000 })
  await sandbox.files.write('/tmp/on-disk', 'in the snapshot')
  await run(sandbox, 'echo in-memory > /dev/shm/kept')
  const count = Number(await run(sandbox, 'cat /dev/shm/count'))
  const snapshot = await sandbox.createSnapshot()
  assert.match(snapshot.snapshotId, /^[a-z0-9]{20}:default$/)
  await sandbox.files.write('/tmp/on-disk', 'after it')
  await goesOn(sandbox)
  assert.equal(await sandbox.kill(), true)
  const [one, two] = await Promise.all([Sandbox.create(snapshot.snapshotId), Sandbox.create(snapshot.snapshotId)])
  for (const s of [one, two]) {
    assert.equal(await run(s, 'cat /tmp/on-disk /dev/shm/kept'), 'in the snapshotin-memory')
    assert.ok(Number(await run(s, 'cat /dev/shm/count')) >= count)
    await goesOn(s)
  }
  await one.files.write('/tmp/on-disk', 'one')
  const second = await one.createSnapshot() // of what came from a snapshot
  const three = await Sandbox.create(second.snapshotId)
  assert.equal(await run(three, 'cat /tmp/on-disk /dev/shm/kept'), 'onein-memory')
  const found = await request('GET', `/snapshots?sandboxID=${sandbox.sandboxId}`)
  assert.deepEqual(found.json, [{ snapshotID: snapshot.snapshotId, names: [] }])
  assert.ok(!(await request('GET', '/templates')).json.some((t) => snapshot.snapshotId.startsWith(t.templateID)), 'no template in the lists')
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  await assert.rejects(Sandbox.create(snapshot.snapshotId), /not found/)
  await goesOn(two) // what runs from it keeps working
  assert.equal(await Sandbox.deleteSnapshot(second.snapshotId), true)
  await Promise.all([one, two, three].map((s) => s.kill()))
})

test('S95 S99 S100: named snapshots: tags, lists with filters and pages, one deleted at a time', async () => {
  const make = (name) => request('POST', `/sandboxes/${origin.sandboxId}/snapshots`, { body: { name } })
  await origin.files.write('/tmp/version', 'one')
  const v1 = await make('moment:v1')
  assert.equal(v1.status, 201, v1.body)
  assert.deepEqual(v1.json, { snapshotID: 'default/moment:v1', names: ['default/moment'] })
  await origin.files.write('/tmp/version', 'two')
  assert.equal((await make('moment:v2')).json.snapshotID, 'default/moment:v2')
  const plain = await make('Moment')
  assert.equal(plain.json.snapshotID, 'default/moment:default')
  const list = async (query) => (await request('GET', `/snapshots?${query}`)).json.map((s) => s.snapshotID)
  assert.deepEqual(await list('name=moment'), ['default/moment:default', 'default/moment:v2', 'default/moment:v1'], 'newest first')
  assert.deepEqual(await list('name=default/moment:v1'), ['default/moment:v1'])
  assert.deepEqual(await list('name=nothing'), [])
  const first = await request('GET', '/snapshots?name=moment&limit=2')
  assert.deepEqual(first.json.map((s) => s.snapshotID), ['default/moment:default', 'default/moment:v2'])
  const second = await request('GET', `/snapshots?name=moment&limit=2&nextToken=${first.headers['x-next-token']}`)
  assert.deepEqual(second.json.map((s) => s.snapshotID), ['default/moment:v1'])
  assert.equal(second.headers['x-next-token'], undefined)

  const one = await Sandbox.create('moment:v1'), two = await Sandbox.create('moment:v2')
  assert.equal(await one.files.read('/tmp/version'), 'one')
  assert.equal(await two.files.read('/tmp/version'), 'two')
  await Promise.all([one.kill(), two.kill()])
  assert.equal(await Sandbox.deleteSnapshot('default/moment:v1'), true)
  await assert.rejects(Sandbox.create('moment:v1'))
  assert.deepEqual(await list('name=moment'), ['default/moment:default', 'default/moment:v2'])

  assert.match((await make('other-team/x')).json.message, /namespace/)
  assert.equal((await make('a b')).status, 400)
  const clash = await make('ticking')
  assert.equal(clash.status, 409)
  assert.match(clash.json.message, /name of a template that is built/)
  await assert.rejects(Template.build(busybox(), 'moment', { cpuCount: 1, memoryMB: 512 }), /name of a snapshot/)
  assert.equal(await Sandbox.deleteSnapshot('default/moment:v2'), true)
  assert.equal(await Sandbox.deleteSnapshot('default/moment:default'), true)
  assert.deepEqual(await list('name=moment'), [])
})

test('S96 S97 S111: two copies at once: one is made, the other is refused; a pause waits for it', async () => {
  const at = `/sandboxes/${origin.sandboxId}/snapshots`
  const both = await Promise.all([request('POST', at), request('POST', at)])
  assert.deepEqual(both.map((r) => r.status).sort(), [201, 409])
  const made = both.find((r) => r.status === 201).json.snapshotID
  const sandbox = await Sandbox.create(made)
  const [snapshot, pause] = await Promise.all([request('POST', `/sandboxes/${sandbox.sandboxId}/snapshots`), sandbox.pause()])
  assert.ok([201, 404, 409].includes(snapshot.status), snapshot.body)
  assert.equal(pause, true)
  assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, 'paused')
  assert.equal((await request('POST', `/sandboxes/${sandbox.sandboxId}/snapshots`)).status, 404, 'paused')
  await Sandbox.kill(sandbox.sandboxId)
  assert.equal(await Sandbox.deleteSnapshot(made), true)
})
