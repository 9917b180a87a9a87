// Metrics as a series and logs (sandbox-api 16, 17): of running, paused, forked and ended sandboxes, over a restart, and of one that lies.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, eventually, request, serve, viaSandbox } from './lib.mjs'

const guard = { timeout: 300_000 }
before(busyboxTemplate, guard)

const logs = async (id, query = '') => (await request('GET', `/sandboxes/${id}/logs${query}`)).json
const logs2 = async (id, query = '') => (await request('GET', `/v2/sandboxes/${id}/logs${query}`)).json.logs
const messages = async (id) => (await logs(id)).logEntries.map((e) => e.message)
const commands = async (id) => (await logs(id)).logEntries.filter((e) => e.fields.event_type === 'process_start').map((e) => e.fields.command)

test('S104 S105 S106: what happened in a sandbox is in its log, in both forms, and stays when it is killed', guard, async () => {
  const sandbox = await Sandbox.create('busybox')
  const id = sandbox.sandboxId
  await sandbox.commands.run('echo secret-output')
  await sandbox.commands.run('exit 7').catch(() => {})
  await sandbox.kill()
  const { logs: lines, logEntries } = await logs(id)
  assert.equal(lines.length, logEntries.length)
  lines.forEach((l, i) => {
    const parsed = JSON.parse(l.line)
    assert.equal(l.timestamp, logEntries[i].timestamp)
    assert.deepEqual([parsed.level, parsed.message, parsed.logger], [logEntries[i].level, logEntries[i].message, logEntries[i].fields.logger])
  })
  assert.deepEqual(logEntries.map((e) => e.timestamp), logEntries.map((e) => e.timestamp).sort())
  assert.ok(logEntries.every((e) => Object.values(e.fields).every((v) => typeof v === 'string')))
  const text = logEntries.map((e) => e.message)
  assert.equal(text[0], 'sandbox created')
  assert.equal(text.at(-1), 'sandbox killed')
  const ends = logEntries.filter((e) => e.fields.event_type === 'process_end')
  assert.deepEqual(ends.map((e) => e.fields.exit_code), ['0', '7'])
  assert.equal(ends[0].fields.stdout_bytes, '14')
  assert.doesNotMatch(JSON.stringify(ends), /secret-output/)
  assert.ok((await commands(id))[0].includes('echo secret-output'))
  // Rehearsals of the pool and what another sandbox did are not in it.
  assert.equal((await commands(id)).length, 2)
})

test('S104 S105: queries: start and limit; cursor, direction, level and search', guard, async () => {
  const sandbox = await Sandbox.create('busybox')
  const id = sandbox.sandboxId
  for (let i = 0; i < 3; i++) await sandbox.commands.run(`echo number-${i}`)
  const all = (await logs(id)).logEntries
  const at = (e) => Date.parse(e.timestamp)
  assert.equal((await logs(id, `?start=${at(all.at(-1)) + 60_000}`)).logs.length, 0)
  assert.ok((await logs(id, `?start=${at(all[2])}`)).logEntries.every((e) => at(e) >= at(all[2])))
  assert.deepEqual((await logs(id, '?limit=2')).logEntries, all.slice(0, 2))
  const back = await logs2(id)
  assert.deepEqual(back, [...all].reverse())
  assert.deepEqual(await logs2(id, '?direction=forward&limit=3'), all.slice(0, 3))
  assert.deepEqual((await logs2(id, '?search=NUMBER-1')).map((e) => e.fields.command), [all.find((e) => e.fields.command?.includes('number-1')).fields.command])
  assert.deepEqual(await logs2(id, '?level=error'), [])
  assert.ok((await logs2(id, `?cursor=${at(all[2])}`)).every((e) => at(e) <= at(all[2])))
  for (const bad of ['limit=0', 'limit=1001', 'level=loud', 'direction=up', 'cursor=x', `search=${'s'.repeat(257)}`]) {
    assert.equal((await request('GET', `/v2/sandboxes/${id}/logs?${bad}`)).status, 400, bad)
  }
  assert.equal((await request('GET', `/sandboxes/${id}/logs?start=x`)).status, 400)
  await sandbox.kill()
})

test('a pause, a resume and a restart of the server are in it once, and a fork has a log of its own', guard, async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 300_000 })
  const id = sandbox.sandboxId
  await sandbox.commands.run('echo before')
  await sandbox.pause()
  serve('restart')
  await sandbox.connect()
  await sandbox.commands.run('echo after')
  serve('restart')
  await sandbox.commands.run('echo again')
  const [copy] = await sandbox.fork()
  await copy.commands.run('echo copied')
  const own = await commands(id)
  assert.deepEqual(own.map((c) => /echo (\w+)/.exec(c)[1]), ['before', 'after', 'again'])
  const text = await messages(id)
  assert.deepEqual(text.filter((m) => /^sandbox/.test(m)), ['sandbox created', 'sandbox paused', 'sandbox resumed'])
  const forked = (await logs(copy.sandboxId)).logEntries
  assert.deepEqual([forked[0].message, forked[0].fields.fork_of], ['sandbox created', id])
  assert.deepEqual((await commands(copy.sandboxId)).map((c) => /echo (\w+)/.exec(c)[1]), ['copied'])
  await copy.kill()
  await sandbox.kill()
})

test('the end of its time, and the death of its machine', guard, async () => {
  const short = await Sandbox.create('busybox', { timeoutMs: 2000 })
  await short.commands.run('echo short')
  await eventually(async () => (await messages(short.sandboxId)).at(-1) === 'sandbox ended: its time is over')
  assert.equal((await commands(short.sandboxId)).length, 1)
  const dying = await Sandbox.create('busybox')
  await dying.commands.run('echo c > /proc/sysrq-trigger', { user: 'root' }).catch(() => {})
  await eventually(async () => (await logs(dying.sandboxId)).logEntries.at(-1).message === 'sandbox ended: its machine has stopped')
  assert.equal((await logs(dying.sandboxId)).logEntries.at(-1).level, 'error')
})

test('S101 S102 S103: metrics are a series: every few seconds, of any time, also when the sandbox is gone; no number is zero', guard, async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 300_000 })
  const id = sandbox.sandboxId, began = Math.floor(Date.now() / 1000)
  const first = await sandbox.getMetrics()
  assert.ok(first.length >= 1, 'a sample at once')
  await sandbox.commands.run('i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done')
  await eventually(async () => (await sandbox.getMetrics()).length >= 4, 120_000)
  const all = await request('GET', `/sandboxes/${id}/metrics`)
  assert.deepEqual(all.json.map((m) => m.timestampUnix), all.json.map((m) => m.timestampUnix).sort((a, b) => a - b))
  const busy = all.json.find((m) => Object.values(m).every((v) => typeof v === 'string' || v > 0))
  assert.ok(busy, JSON.stringify(all.json))
  assert.deepEqual(Object.keys(busy).sort(), ['cpuCount', 'cpuUsedPct', 'diskTotal', 'diskUsed', 'memCache', 'memTotal', 'memUsed', 'timestamp', 'timestampUnix'])
  const cut = all.json[1].timestampUnix
  assert.ok((await request('GET', `/sandboxes/${id}/metrics?start=${cut}&end=${cut}`)).json.every((m) => m.timestampUnix === cut))
  assert.deepEqual((await request('GET', `/sandboxes/${id}/metrics?start=1&end=${began - 3600}`)).json, [])
  assert.deepEqual((await request('GET', `/sandboxes/${id}/metrics?start=99999999999&end=99999999999`)).json, [])
  assert.equal((await request('GET', `/sandboxes/${id}/metrics?start=99999999999999`)).status, 400)
  const many = await request('GET', `/sandboxes/metrics?sandbox_ids=${id},i${'0'.repeat(20)}`)
  assert.deepEqual(Object.keys(many.json.sandboxes), [id])
  await sandbox.kill()
  assert.ok((await request('GET', `/sandboxes/${id}/metrics`)).json.length >= all.json.length)
  assert.deepEqual((await request('GET', `/sandboxes/metrics?sandbox_ids=${id}`)).json, { sandboxes: {} })
})

test('reading neither wakes a paused sandbox nor needs one that answers', guard, async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 300_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  const id = sandbox.sandboxId
  await sandbox.pause()
  await request('GET', `/sandboxes/${id}/metrics`)
  await logs(id)
  assert.equal((await request('GET', `/sandboxes/${id}`)).json.state, 'paused')
  await sandbox.connect()
  // Its agent stands still: answers come from what there is.
  await sandbox.commands.run('kill -STOP $(pidof envd vmon-agent 2>/dev/null || echo 1)', { user: 'root', timeoutMs: 5000 }).catch(() => {})
  assert.ok((await messages(id)).includes('sandbox resumed'))
  assert.equal((await request('GET', `/sandboxes/${id}/metrics`)).status, 200)
  assert.equal((await request('DELETE', `/sandboxes/${id}`)).status, 204)
  assert.equal((await messages(id)).at(-1), 'sandbox killed')
})

test('the gateway does not forward to it', guard, async () => {
  const sandbox = await Sandbox.create('busybox', { secure: false })
  const r = await request('GET', '/telemetry', { headers: viaSandbox(sandbox.sandboxId, 49983) })
  assert.equal(r.status, 404)
  await sandbox.kill()
})
