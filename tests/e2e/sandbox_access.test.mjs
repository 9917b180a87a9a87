// Who may do what with a sandbox (issue 3, demand 4): each endpoint with a key of the own team, of another one, an unknown key and none. The
// template endpoints are in tests/api/test_access.py.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { admin, apiKey, busyboxTemplate, request } from './lib.mjs'

const made = []
let other, running, paused, snapshot

before(async () => {
  await busyboxTemplate()
  admin('create-team', 'Strangers', '--slug', 'strangers')
  other = /e2b_[0-9a-f]+/.exec(admin('create-key', 'strangers'))[0]
  for (let i = 0; i < 2; i++) made.push(await Sandbox.create('busybox', { timeoutMs: 600_000, metadata: { secret: 'of-the-owner' } }))
  running = made[0].sandboxId
  paused = made[1].sandboxId
  await made[1].pause()
  snapshot = (await made[0].createSnapshot()).snapshotId
})
after(async () => {
  for (const sandbox of made) await sandbox.kill()
  await request('DELETE', `/templates/${encodeURIComponent(snapshot)}`)
  admin('delete-team', 'strangers')
})

// Method, path below the sandbox, body, the owner's status; in an order in which each works for the owner of a running sandbox.
const endpoints = [
  ['GET', '/sandboxes/{id}', undefined, 200],
  ['GET', '/sandboxes/{id}/metrics', undefined, 200],
  ['GET', '/sandboxes/{id}/logs', undefined, 200],
  ['GET', '/v2/sandboxes/{id}/logs', undefined, 200],
  ['POST', '/sandboxes/{id}/timeout', { timeout: 500 }, 204],
  ['POST', '/sandboxes/{id}/refreshes', { duration: 600 }, 204],
  ['PUT', '/sandboxes/{id}/network', { denyOut: ['192.0.2.0/24'] }, 204],
  ['POST', '/sandboxes/{id}/connect', { timeout: 600 }, 200],
  ['POST', '/v2/sandboxes/{id}/connect', { timeout: 600 }, 200],
  ['POST', '/sandboxes/{id}/snapshots', {}, 201],
  ['POST', '/sandboxes/{id}/fork', { count: 1 }, 201],
  ['POST', '/sandboxes/{id}/pause', {}, 204],
  ['POST', '/sandboxes/{id}/resume', { timeout: 600 }, 201],
  ['DELETE', '/sandboxes/{id}', undefined, 204],
]
const at = (target, id) => target.replace('{id}', id)

test('S22: another team\'s key finds no sandbox, no key opens none, and neither changes anything', async () => {
  const wrong = []
  const before = [(await request('GET', `/sandboxes/${running}`)).json, (await request('GET', `/sandboxes/${paused}`)).json]
  for (const id of [running, paused, 'inosuchsandbox0000000']) {
    for (const [method, target, body] of endpoints) {
      for (const [who, key, expected] of [['other', other, 404], ['unknown', `e2b_${'0'.repeat(40)}`, 401], ['none', null, 401]]) {
        const { status, body: text } = await request(method, at(target, id), { body, key })
        // Samples and logs of a sandbox that there is not, or that is another's, are none (sandbox-api 16, 17).
        const empty = who === 'other' && /metrics$|logs$/.test(target) && status === 200 && ['[]', '{"logs":[]}', '{"logs":[],"logEntries":[]}'].includes(text)
        if (status !== expected && !empty) wrong.push(`${who} ${method} ${at(target, id)}: ${status} ${text}`)
        if (text.includes('of-the-owner')) wrong.push(`${who} ${method} ${at(target, id)} tells: ${text}`)
      }
    }
  }
  assert.deepEqual(wrong, [])
  const now = [(await request('GET', `/sandboxes/${running}`)).json, (await request('GET', `/sandboxes/${paused}`)).json]
  assert.deepEqual(now, before)
})

test('lists, many metrics and snapshots hold the own only', async () => {
  for (const target of ['/sandboxes', '/v2/sandboxes?state=running,paused', '/snapshots']) {
    assert.deepEqual((await request('GET', target, { key: other })).json, [], target)
    assert.ok((await request('GET', target)).json.length > 0, target)
    assert.equal((await request('GET', target, { key: null })).status, 401)
  }
  assert.deepEqual((await request('GET', `/sandboxes/metrics?sandbox_ids=${running}`, { key: other })).json.sandboxes, {})
  assert.equal((await request('POST', '/v2/sandboxes', { key: other, body: { templateID: snapshot } })).status, 403)
  assert.equal((await request('POST', '/v2/sandboxes', { key: other, body: { templateID: 'busybox' } })).status, 404)
  assert.ok([403, 404].includes((await request('DELETE', `/templates/${encodeURIComponent(snapshot)}`, { key: other })).status))
  assert.equal((await request('GET', '/snapshots')).json.length, 1)
})

test('the owner does all of it', async () => {
  const wrong = []
  for (const [method, target, body, expected] of endpoints) {
    const { status, body: text } = await request(method, at(target, running), { body, key: apiKey })
    if (status !== expected) wrong.push(`${method} ${target}: ${status} ${text}`)
  }
  assert.deepEqual(wrong, [])
  for (const { sandboxID } of (await request('GET', '/v2/sandboxes')).json) await request('DELETE', `/sandboxes/${sandboxID}`)
  for (const { snapshotID } of (await request('GET', '/snapshots')).json)
    if (snapshotID !== snapshot) await request('DELETE', `/templates/${encodeURIComponent(snapshotID)}`)
})
