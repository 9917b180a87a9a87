// GET /telemetry, for the host alone: metrics, and the entries of the sandbox's log (docs/agent-protocol.md; envd contract, appendix D).
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ownAgent } from './lib.mjs'

const ask = async (a, epoch = '', after = 0, headers = {}) => {
  const r = await a.request('GET', `/telemetry?epoch=${epoch}&after=${after}`, { headers })
  assert.equal(r.status, 200)
  return r.json
}
const kinds = (entries) => entries.map((e) => [e.level, e.fields.event_type, e.fields.exit_code])

test('starts and ends of processes, in order, once', async () => {
  const a = await ownAgent()
  const empty = await ask(a)
  assert.deepEqual(empty.entries, [])
  assert.ok(empty.metrics.cpu_count >= 1 && empty.metrics.mem_total > 0)
  await a.start({ process: { cmd: 'sh', args: ['-c', 'echo four; echo e >&2; exit 3'] }, tag: 'mine' })
  const { epoch, entries } = await ask(a, empty.epoch)
  assert.equal(epoch, empty.epoch)
  assert.deepEqual(kinds(entries), [['info', 'process_start', undefined], ['info', 'process_end', 3]])
  assert.deepEqual(entries.map((e) => e.n), [1, 2])
  const [begun, ended] = entries.map((e) => e.fields)
  assert.deepEqual([begun.command, begun.tag, begun.pid], ['sh -c echo four; echo e >&2; exit 3', 'mine', ended.pid])
  assert.deepEqual([ended.status, ended.stdout_bytes, ended.stderr_bytes], ['exit status 3', 5, 2])
  assert.ok(entries.every((e) => Math.abs(e.time_ns / 1e6 - Date.now()) < 60000))
  assert.doesNotMatch(JSON.stringify(entries), /four\\n/)
  assert.deepEqual((await ask(a, epoch, 2)).entries, [])
  assert.equal((await ask(a, epoch, 1)).entries.length, 1)
  assert.equal((await ask(a, 'another', 2)).entries.length, 2)
})

test('a process that could not be started, and one that was killed', async () => {
  const a = await ownAgent()
  await a.start({ process: { cmd: 'sh', args: ['-c', 'x'.repeat(200000)] }, stdin: false })
  await a.start({ process: { cmd: 'sh', args: ['-c', 'kill -9 $$'] }, stdin: false })
  const { entries } = await ask(a)
  assert.ok(entries.some((e) => e.level === 'error' && /list too long/.test(e.fields.error)), JSON.stringify(entries).slice(0, 500))
  assert.ok(entries.some((e) => e.fields.status === 'signal: killed' && e.fields.exit_code === -1))
  assert.ok(JSON.stringify(entries).length < 16384)
})

test('it is bounded: the oldest go, an answer has a part', async () => {
  const a = await ownAgent()
  for (let i = 0; i < 60; i++) await Promise.all([0, 1].map(() => a.start({ process: { cmd: 'true', args: ['y'.repeat(5000)] }, stdin: false })))
  let all = [], epoch = '', after = 0, rounds = 0
  for (;;) {
    const got = await ask(a, epoch, after)
    if (!got.entries.length) break
    assert.ok(JSON.stringify(got).length < 72 * 1024)
    rounds++
    all = all.concat(got.entries)
    ;({ epoch } = got)
    after = got.entries.at(-1).n
  }
  assert.equal(after, 240)
  assert.ok(rounds > 2 && all.length < 240 && all.length > 60, `${rounds} answers, ${all.length} entries`)
  assert.deepEqual(all.map((e) => e.n), all.map((e, i) => all[0].n + i))
})

test('only with the token; what is no number is refused', async () => {
  const a = await ownAgent()
  assert.equal((await a.request('GET', '/telemetry?after=x')).status, 400)
  await a.init({ accessToken: 'T' })
  assert.equal((await a.request('GET', '/telemetry')).status, 401)
  await ask(a, '', 0, { 'x-access-token': 'T' })
})
