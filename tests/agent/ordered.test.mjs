// The output of build steps: all of it, whole, in the order of the writes, and one end.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { stream } from './lib.mjs'

async function run(script, { ordered = true, user = 'root' } = {}) {
  const r = await stream('process.Process/Start', { process: { cmd: '/bin/sh', args: ['-c', script], cwd: '/' }, stdin: false, vmonOrdered: ordered },
    { headers: { authorization: 'Basic ' + Buffer.from(`${user}:`).toString('base64') } })
  const events = r.messages.map((m) => m.event)
  const data = events.filter((e) => e.data).map((e) => [e.data.stdout ? 'out' : 'err', Buffer.from(e.data.stdout ?? e.data.stderr, 'base64')])
  const of = (name) => Buffer.concat(data.filter(([s]) => s === name).map(([, b]) => b)).toString('latin1')
  return { events, data, out: of('out'), err: of('err'), ends: events.filter((e) => e.end).map((e) => e.end) }
}

test('two streams written in turn come in turn', async () => {
  const { data, ends } = await run('i=0; while [ $i -lt 3000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done')
  const lines = Buffer.concat(data.map(([, b]) => b)).toString().trim().split('\n')
  const wanted = Array.from({ length: 6000 }, (_, i) => (i % 2 ? 'e' : 'o') + (i >> 1))
  const wrong = lines.findIndex((l, i) => l !== wanted[i])
  assert.equal(wrong, -1, `line ${wrong} is ${lines[wrong]}`)
  assert.equal(lines.length, wanted.length)
  assert.equal(ends.length, 1)
})

test('writes through children come in turn', async () => {
  const { data } = await run('for i in 1 2 3 4 5 6 7 8 9; do sh -c "echo o$i"; sh -c "echo e$i >&2"; done')
  assert.equal(Buffer.concat(data.map(([, b]) => b)).toString(), [1, 2, 3, 4, 5, 6, 7, 8, 9].map((i) => `o${i}\ne${i}\n`).join(''))
})

// The kernel joins writes to a pipe that was opened anew (process.c), so that only each stream's own order is certain.
test('writes to /dev/stderr are all there and in their order', async () => {
  const { out, err } = await run('for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >/dev/stderr; done')
  for (const [text, letter] of [[out, 'o'], [err, 'e']]) assert.equal(text, [1, 2, 3, 4, 5, 6, 7, 8, 9].map((i) => `${letter}${i}\n`).join(''))
})

test('a command may open its own output anew, whoever runs it', async () => {
  for (const ordered of [true, false]) {
    const { out, err } = await run('id -un; echo o >/dev/stdout; echo e >/dev/stderr', { ordered, user: 'nobody' })
    assert.deepEqual([out, err], ['nobody\no\n', 'e\n'])
  }
})

test('nothing is lost of large writes, several writers and a missing newline', async () => {
  const { out, err, ends } = await run(`head -c 3000000 /dev/zero | tr '\\0' a; { head -c 500000 /dev/zero | tr '\\0' b >&2; } & head -c 500000 /dev/zero | tr '\\0' c; wait; printf end`)
  assert.ok(out === 'a'.repeat(3000000) + 'c'.repeat(500000) + 'end', `${out.length} bytes`)
  assert.ok(err === 'b'.repeat(500000), `${err.length} bytes`)
  assert.deepEqual(ends.map((e) => e.exitCode ?? 0), [0])
})

test('output of a descendant that outlives the command is waited for', async () => {
  const { out, ends } = await run('(sleep 0.5; echo late) & echo early')
  assert.equal(out, 'early\nlate\n')
  assert.equal(ends.length, 1)
})

test('a daemon that holds the output holds the command for seconds only', async () => {
  const started = Date.now()
  const { out, ends } = await run('sleep 60 & echo started $!; exit 4')
  assert.match(out, /^started \d+\n$/)
  assert.deepEqual(ends.map((e) => e.exitCode), [4])
  assert.ok(Date.now() - started < 30000)
  process.kill(Number(out.split(' ')[1]))
})

test('D7.85: exit 3 with output, 200 times, is exit 3 once', async () => {
  for (let i = 0; i < 200; i += 10)
    for (const { out, ends } of await Promise.all(Array.from({ length: 10 }, (_, n) => run(`echo ${i + n}; echo x >&2; exit 3`)))) {
      assert.match(out, /^\d+\n$/)
      assert.deepEqual(ends.map((e) => [e.exited, e.exitCode, e.status]), [[true, 3, 'exit status 3']])
    }
})
