// Logs of real builds (issue 3, demand 6): all lines, whole, in order, by offset, level, cursor and direction, during and after the build.
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { apiKey, eventually, port } from './lib.mjs'
import { api, run } from './server.mjs'

const a = api({ port, key: apiKey })
const guard = { timeout: 300_000 }
const LINES = 10_000, LONG = 1 << 20
let build

// The last step says 10,000 lines, faster than the log is copied, and the build ends at once.
before(async () => {
  build = await a.build('talking', {
    steps: run(
      `head -c ${LONG} /dev/zero | tr '\\0' x; echo; echo after-the-long-line`,
      `printf 'nul:\\000: esc:\\033[31mred\\033[0m bad:\\377\\376: cut:\\303\\n'`,
      'echo early; while [ ! -e /tmp/never ] && [ $((n=n+1)) -le 40 ]; do sleep 0.1; done',
      `seq -f 'line %.0f' 1 ${LINES} 2>/dev/null || i=1; while [ "\${i:-99999}" -le ${LINES} ]; do echo "line $i"; i=$((i+1)); done`,
    ),
  })
  await a.logged(build, 'early')
  const soFar = await a.log(build)
  assert.equal((await a.status(build)).status, 'building')
  assert.ok(soFar.some((e) => e.message.includes('after-the-long-line')), 'readable during the build')
  assert.equal((await a.finished(build)).status, 'ready')
  const all = await a.log(build)
  assert.deepEqual(all.slice(0, soFar.length), soFar, 'what was read stays as it was')
}, guard)

const numbers = (entries) => entries.map((e) => /line (\d+)$/.exec(e.message)).filter(Boolean).map((m) => Number(m[1]))
const counted = Array.from({ length: LINES }, (_, i) => i + 1)

test('10,000 lines of the last second are all there, in order, read by offset', guard, async () => {
  const all = await a.log(build)
  assert.deepEqual(numbers(all), counted)
  assert.deepEqual(all.map((e) => e.timestamp), all.map((e) => e.timestamp).toSorted(), 'one order')
  assert.match(all.at(-1).message, /^Build finished/)
})

test('a line of 1 MiB is whole, in pieces', guard, async () => {
  const all = await a.log(build)
  const xs = all.filter((e) => /x{100}/.test(e.message) && !e.message.includes('RUN'))
  const joined = xs.map((e) => e.message.replace(/^.*\[stdout\]: /, '')).join('')
  assert.equal(joined.length, LONG)
  assert.match(joined, /^x+$/)
  assert.ok(xs.every((e) => e.message.length <= 32 * 1024))
  const at = all.indexOf(xs.at(-1))
  assert.match(all[at + 1].message, /after-the-long-line/)
})

test('NUL, ANSI sequences and bytes that are no UTF-8 are valid JSON', guard, async () => {
  const { message } = (await a.log(build)).find((e) => e.message.includes('[stdout]: nul:'))
  assert.match(message, /nul:[\0\ufffd]: esc:\x1b\[31mred\x1b\[0m bad:\ufffd+: cut:\ufffd$/)
})


test('forward and backward by cursor are each other\'s reverse; a level is a part of all', guard, async () => {
  const all = await a.log(build)
  const some = await eventually(async () => {
    const { json } = await a.call('GET', `/templates/${build.templateID}/builds/${build.buildID}/logs?limit=100&direction=backward`)
    return json.logs
  })
  assert.deepEqual(some.map((e) => e.message), all.slice(-100).reverse().map((e) => e.message))
  const { json: first } = await a.call('GET', `/templates/${build.templateID}/builds/${build.buildID}/logs?limit=100&direction=forward&cursor=0`)
  assert.deepEqual(first.logs.map((e) => e.message), all.slice(0, 100).map((e) => e.message))
  const { json: warnings } = await a.call('GET', `/templates/${build.templateID}/builds/${build.buildID}/status?level=error`)
  assert.deepEqual(warnings.logEntries, all.filter((e) => e.level === 'error').slice(0, 100))
})
