// Start and ready commands (template-api 13.2, 13.3; known failures 82 and 83), on a busybox image.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { apiKey, dir, port, request, viaSandbox } from './lib.mjs'
import { api, startServer } from './server.mjs'

const main = api({ port, key: apiKey })
const root = path.join(dir, 'start')
let impatient // a server that waits 10 s for a template to be ready
let quick

before(async () => {
  fs.rmSync(root, { recursive: true, force: true })
  impatient = await startServer(root, 'impatient', { options: ['--ready-seconds', '10'] })
  quick = api(impatient)
})
after(async () => {
  await impatient?.stop()
  fs.rmSync(root, { recursive: true, force: true })
})

const guard = { timeout: 300_000 }
const find = (entries, pattern) => entries.findIndex((e) => pattern.test(e.message))
const at = (entry) => Date.parse(entry.timestamp)

async function ready(a, name, plan) {
  const build = await a.build(name, plan)
  const status = await a.finished(build)
  assert.equal(status.status, 'ready', JSON.stringify(status.reason))
  return a.log(build)
}

async function fails(a, name, plan, message) {
  const build = await a.build(name, plan)
  const { status, reason } = await a.finished(build)
  assert.equal(status, 'error')
  assert.match(reason.message, message)
  assert.equal(reason.step, 'finalize')
  const last = (await a.log(build)).at(-1)
  assert.deepEqual([last.level, last.message], ['error', `Build failed: ${reason.message}`])
}

test('223 227 D7.83 start and ready: log order and levels, a sandbox answers at once', guard, async () => {
  const startCmd = 'echo serving; echo aside >&2; mkdir -p /tmp/www; echo hello > /tmp/www/index.html; exec busybox httpd -f -p 8000 -h /tmp/www'
  const readyCmd = 'echo looking; busybox wget -q -O /dev/null http://127.0.0.1:8000/'
  const entries = await ready(main, 'start-both', { startCmd, readyCmd })
  const order = [/^Running start command: echo serving/, /^Waiting for template to be ready: echo looking/, /^Template is ready$/, /^Build finished/]
  const found = order.map((p) => find(entries, p))
  assert.ok(found.every((f, i) => f >= 0 && (i === 0 || f > found[i - 1])), JSON.stringify(found))
  for (const f of found) assert.equal(entries[f].level, 'info')
  for (const [pattern, level] of [[/^\[start\] \[stdout\]: serving$/, 'info'], [/^\[start\] \[stderr\]: aside$/, 'info'], [/^\[ready\] .*looking$/, 'debug']])
    assert.equal(entries[find(entries, pattern)]?.level, level, String(pattern))
  assert.ok(found.slice(0, 3).every((f) => entries[f].step === 'finalize'))
  const sandbox = await Sandbox.create('start-both')
  try {
    const answer = await request('GET', '/', { headers: viaSandbox(sandbox.sandboxId, 8000) })
    assert.deepEqual([answer.status, answer.body], [200, 'hello\n'])
    const closed = await request('GET', '/', { headers: viaSandbox(sandbox.sandboxId, 8001) })
    assert.deepEqual([closed.status, closed.json.hint], [502, undefined], 'this template has a start command')
  } finally {
    await sandbox.kill()
  }
})

test('224 D7.83 a start command alone waits 20 s; one that ends at once with 0 is fine', guard, async () => {
  const entries = await ready(main, 'start-only', { startCmd: 'exit 0' })
  const begin = entries[find(entries, /^Waiting for template to be ready: sleep 20$/)], end = entries[find(entries, /^Template is ready$/)]
  assert.ok(at(end) - at(begin) >= 20_000, `${at(end) - at(begin)} ms`)
})

test('D7.83 a ready command alone: three failures 2 s apart, then ready', guard, async () => {
  const readyCmd = 'n=$(cat /tmp/tries 2>/dev/null || echo 0); echo $((n+1)) > /tmp/tries; echo try $n; [ $n -ge 3 ]'
  const entries = await ready(main, 'ready-only', { readyCmd })
  const tries = entries.filter((e) => e.message === 'Template is not ready: exit status 1')
  assert.equal(tries.length, 3)
  for (const t of tries) assert.deepEqual([t.level, t.step], ['debug', 'finalize'])
  for (let i = 1; i < tries.length; i++) assert.ok(at(tries[i]) - at(tries[i - 1]) >= 2000)
  assert.equal(find(entries, /^Running start command/), -1)
  assert.deepEqual(entries.filter((e) => /^\[ready\]/.test(e.message)).map((e) => e.message.replace(/^.*: /, '')), ['try 0', 'try 1', 'try 2', 'try 3'])
})

test('D7.82 D7.83 neither: the phase is skipped, and a closed port says that nothing was started', guard, async () => {
  const entries = await ready(main, 'no-start', {})
  assert.equal(find(entries, /start command|to be ready|is ready/), -1)
  const sandbox = await Sandbox.create('no-start')
  try {
    const closed = await request('GET', '/', { headers: viaSandbox(sandbox.sandboxId, 8000) })
    const { hint, ...rest } = closed.json
    assert.deepEqual(rest, { sandboxId: sandbox.sandboxId, message: 'The sandbox is running but port is not open', port: 8000, code: 502 })
    assert.match(hint, /template of this sandbox has no start command/)
  } finally {
    await sandbox.kill()
  }
})

test('226 a start command that fails at once, and one that fails while the ready command hangs', guard, async () => {
  await Promise.all([
    fails(quick, 'exit-1', { startCmd: 'exit 1' }, /^start command failed: error running start command: exit status 1$/),
    fails(quick, 'exit-4', { startCmd: 'until [ -e /tmp/asked ]; do usleep 100000; done; exit 4', readyCmd: 'touch /tmp/asked; sleep 3000' },
      /^start command failed: error running start command: exit status 4$/),
  ])
})

test('225 D7.83 never ready: failing tries and one that hangs end at the limit, and the reason tells them apart', guard, async () => {
  await Promise.all([
    fails(quick, 'never', { startCmd: 'exit 0', readyCmd: 'exit 9' },
      /^ready command failed: ready command timed out after 10s \(\d tries, the last one: exit status 9; the start command has ended by itself, with exit status 0\)$/),
    fails(quick, 'hangs', { startCmd: 'sleep 3000', readyCmd: 'sleep 3000' },
      /^ready command failed: ready command timed out after 10s \(try 1 was still running\)$/),
  ])
})
