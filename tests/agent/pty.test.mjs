// Terminals (envd contract 2.1, checklist 85 to 96).
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { b64, init, kill, refused, sleep, spawned, start, terminal, type, unary, until } from './lib.mjs'

before(() => init({ defaultUser: 'user' }))
const update = (pid, size) => unary('process.Process/Update', { process: { pid }, ...(size ? { pty: { size } } : {}) })

test('E85: only pty events; E86: the size it was given', async () => {
  const p = await terminal()
  assert.equal((await type(p.pid, 'stty size\n')).status, 200)
  await p.says('24 80')
  await type(p.pid, 'exit\n')
  const r = await p.done
  const kinds = new Set(r.messages.flatMap((m) => Object.keys(m.event.data ?? {})))
  assert.deepEqual([...kinds], ['pty'])
  assert.ok(r.messages.every((m) => Buffer.from(m.event.data?.pty ?? '', 'base64').length <= 16384))
})

test('E87: a new size, with its signal', async () => {
  const p = await terminal()
  await type(p.pid, `trap 'echo got"-"WINCH' WINCH; echo trap-is""-set\n`)
  await p.says('trap-is-set\r\n')
  assert.deepEqual((await update(p.pid, { cols: 120, rows: 40 })).json, {})
  await type(p.pid, 'stty size\n')
  await p.says('40 120')
  await p.says('got-WINCH\r\n')
  await kill(p.pid)
})

test('E88: exit 5', async () => {
  const p = await terminal()
  await type(p.pid, 'exit 5\n')
  assert.equal((await p.end()).exitCode, 5)
})

test('E89: Ctrl+C interrupts; E90: Ctrl+D at the prompt ends the shell', async () => {
  const p = await terminal()
  await type(p.pid, 'echo run"n"ing; sleep 100; echo code $?\n')
  await p.says('running\r\n')
  await type(p.pid, '\x03')
  // What is typed before the shell has its terminal back may be dropped: that is for the shell to say.
  await until(async () => {
    await type(p.pid, 'echo af"t"er\n')
    await sleep(100)
    return p.out.includes('after\r\n')
  })
  await type(p.pid, '\x04')
  assert.ok((await p.end()).exited)
})

test('E91: input for a pipe; E92: no input to close', async () => {
  const p = await terminal()
  refused(await unary('process.Process/SendInput', { process: { pid: p.pid }, input: { stdin: b64('x') } }), 500, 'internal',
    /^error writing to stdin: tty assigned to process — input should be written to the pty, not the stdin$/)
  refused(await unary('process.Process/CloseStdin', { process: { pid: p.pid } }), 500, 'unknown',
    /^error closing stdin: cannot close stdin for PTY process — send Ctrl\+D \(0x04\) instead$/)
  await kill(p.pid)
  const q = await spawned('cat')
  refused(await type(q.pid, 'x'), 500, 'internal', /^error writing to tty: tty not assigned to process — input should be written to the stdin, not the tty$/)
  await kill(q.pid)
})

test('E93: a kill', async () => {
  const p = await terminal()
  assert.equal((await kill(p.pid)).status, 200)
  const end = await p.end()
  assert.deepEqual([end.exitCode, end.error], [-1, 'signal: killed'])
})

test('E94: a controlling terminal', async () => {
  const p = await terminal()
  await type(p.pid, 'tty; sleep 50 & jobs; kill %1; echo all"-"done\n')
  await p.says('all-done\r\n')
  assert.match(p.out, /\/dev\/pts\/\d+/)
  assert.match(p.out, /\[1\]\+ +Running/)
  assert.doesNotMatch(p.out, /no job control|cannot set terminal process group/)
  await kill(p.pid)
})

test('E95: an update of nothing, and of what has no terminal', async () => {
  const [p, q] = [await terminal(), await spawned('sleep 100')]
  for (const pid of [p.pid, q.pid]) assert.deepEqual((await update(pid)).json, {})
  refused(await update(q.pid, { cols: 1, rows: 1 }), 500, 'internal', /^error resizing tty: tty not assigned to process$/)
  await Promise.all([kill(p.pid), kill(q.pid)])
})

test('E96: sizes of zero, absent or too large', async () => {
  for (const pty of [{}, { size: {} }, { size: { cols: 0, rows: 0 } }, { size: { cols: 70000, rows: 24 } }]) {
    const r = await start({ process: { cmd: 'stty', args: ['size'] }, pty })
    assert.equal(r.end.status, 'exit status 0', JSON.stringify(pty))
    assert.equal(Buffer.concat(r.chunks.pty).toString().trim(), pty.size?.cols ? '24 4464' : '0 0')
  }
})
