// A power cut at every instant at which pausing, resuming, forking or a snapshot makes something durable. After the next start the
// sandbox is there, running or paused, with the memory and files of before, and nothing half-made is left.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { data, isBroken, recorded, restart, startRecording, title } from './failpoints.mjs'
import { busyboxTemplate, eventually, request } from './lib.mjs'

const soak = process.env.VMON_SOAK === '1'
const run = async (sandbox, cmd) => (await sandbox.commands.run(cmd)).stdout.trim()

before(busyboxTemplate)
after(() => restart())

async function make() {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 600_000 })
  await run(sandbox, 'mkdir -p /dev/shm; echo in-memory > /dev/shm/kept; echo on-disk > /tmp/kept')
  return sandbox.sandboxId
}

// Answers null when the server died under the request.
async function post(target, body = {}) {
  try {
    return await request('POST', target, { body })
  } catch (error) {
    if (isBroken(error)) return null
    throw error
  }
}

const operations = {
  pause: { does: (id) => post(`/sandboxes/${id}/pause`), ok: 204, wants: ['paused.json', '/paused@', 'commit:sandbox/'] },
  resume: {
    prepare: (id) => post(`/sandboxes/${id}/pause`), does: (id) => post(`/v2/sandboxes/${id}/connect`, { timeout: 300 }), ok: 201,
    wants: ['/resumed@', 'commit:sandbox/'],
  },
  fork: { does: (id) => post(`/sandboxes/${id}/fork`, { count: 1, timeout: 300 }), ok: 201, wants: ['/saved@', '/resumed@'] },
  snapshot: { does: (id) => post(`/sandboxes/${id}/snapshots`), ok: 201, wants: ['/builds/', 'manifest.json', 'commit:tag/'] },
}

async function works(id) {
  const sandbox = await Sandbox.connect(id, { timeoutMs: 300_000 })
  assert.equal(await run(sandbox, 'cat /dev/shm/kept /tmp/kept'), 'in-memory\non-disk')
}

// What is there belongs to sandboxes and builds that the API shows.
async function checkFiles() {
  const listed = (await request('GET', '/v2/sandboxes?state=running,paused')).json.map((s) => s.sandboxID).sort()
  assert.deepEqual(fs.readdirSync(path.join(data, 'sandboxes')).sort(), listed)
  for (const id of listed) {
    const names = fs.readdirSync(path.join(data, 'sandboxes', id))
    assert.deepEqual(names.filter((n) => /\.tmp$|^saved|^resumed/.test(n)), [])
  }
  await eventually(() => fs.readdirSync(path.join(data, 'builds')).every((n) => /^[0-9a-f-]{36}$/.test(n)))
  return listed
}

async function endAll() {
  for (const { sandboxID } of (await request('GET', '/v2/sandboxes?state=running,paused')).json) await Sandbox.kill(sandboxID)
  for (const { snapshotID } of (await request('GET', '/snapshots')).json) await Sandbox.deleteSnapshot(snapshotID)
}

for (const [name, operation] of Object.entries(operations)) {
  test(`a power cut at any instant of a ${name} loses nothing`, async (t) => {
    await restart()
    let id = await make()
    await operation.prepare?.(id)
    await startRecording()
    assert.equal((await operation.does(id)).status, operation.ok)
    const points = recorded()
    await endAll()
    for (const wanted of operation.wants) {
      assert.ok(points.some((p) => p.includes(wanted)), `no failpoint at ${wanted}:\n${points.join('\n')}`)
    }
    const chosen = soak ? points : points.filter((p) => /^(rename|renamed):.*\/(paused|resumed|saved|builds\/\*)@1|^committed:(sandbox|tag)\/.*@1/.test(p))
    assert.ok(chosen.length > 0)
    for (const point of chosen) {
      await t.test(title(point), async () => {
        await restart()
        id = await make()
        await operation.prepare?.(id)
        await restart({ VMON_FAILPOINT: point })
        const answer = await operation.does(id)
        assert.equal(answer, null, `the failpoint was not passed: ${answer?.status} ${answer?.body}`)
        await restart()
        const listed = await checkFiles()
        assert.ok(listed.includes(id), 'the sandbox is lost')
        for (const one of listed) await works(one)
        for (const { snapshotID } of (await request('GET', '/snapshots')).json) {
          const sandbox = await Sandbox.create(snapshotID)
          await works(sandbox.sandboxId)
        }
        await endAll()
      })
    }
  })
}
