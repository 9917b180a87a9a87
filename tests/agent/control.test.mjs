// Listing, input, signals and connecting to processes (envd contract 2.1, checklist 97 to 122).
import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { alive, b64, basic, bash, envelope, failed, init, input, kill, list, open, ownAgent, refused, run, sleep, spawned, start, stream, terminal, unary, until } from './lib.mjs'

before(() => init({ defaultUser: 'user' }))
const call = (method, body, headers) => unary('process.Process/' + method, body, headers)
const connect = (selector, options) => open('process.Process/Connect', { process: selector }, options)
const GONE = 999999

test('E97: List of nothing; E98: of a process; E99: of one that ended', async () => {
  const own = await ownAgent()
  assert.equal((await own.unary('process.Process/List', {})).body.toString(), '{}')
  const config = { cmd: '/bin/bash', args: ['-l', '-c', 'sleep 100'], envs: { A: '1', B: '' }, cwd: '/tmp' }
  const p = await own.open('process.Process/Start', { process: config, tag: 't', stdin: false })
  assert.deepEqual(await own.list(), [{ config, pid: p.pid, tag: 't' }])
  await own.kill(p.pid)
  await p.done
  assert.deepEqual(await own.list(), [])
})

test('E100: input; E101: a MiB of it', { timeout: 60000 }, async () => {
  const p = await spawned('cat')
  assert.deepEqual((await input(p.pid, 'abc\n')).json, {})
  await p.says('abc\n')
  const text = 'x'.repeat(1023).concat('\n').repeat(1024)
  assert.equal((await input(p.pid, text)).status, 200)
  await until(() => p.out.length === text.length + 4)
  assert.ok(p.out === 'abc\n' + text)
  await call('CloseStdin', { process: { pid: p.pid } })
  await p.done
})

test('E102: input for nobody; E103: for a process without; E104: for one that closed it', async () => {
  refused(await input(GONE, 'x'), 404, 'not_found', /^process with pid 999999 not found$/)
  const p = await spawned('sleep 100', { request: { stdin: false } })
  refused(await input(p.pid, 'x'), 500, 'internal', /^error writing to stdin: stdin not enabled or closed$/)
  await kill(p.pid)
  const q = await spawned('exec 0<&-; echo closed; sleep 100')
  await q.says('closed')
  refused(await input(q.pid, 'x'), 500, 'internal', new RegExp(`^error writing to stdin: error writing to stdin of process '${q.pid}': .*broken pipe`, 'i'))
  assert.equal((await call('List', {})).status, 200)
  await kill(q.pid)
})

test('E105: no input; E106: no selector', async () => {
  const p = await spawned('cat')
  for (const body of [{}, { input: {} }]) refused(await call('SendInput', { process: { pid: p.pid }, ...body }), 501, 'unimplemented')
  for (const method of ['SendInput', 'SendSignal', 'CloseStdin', 'Update'])
    for (const body of [{}, { process: {} }, { process: null }]) refused(await call(method, { ...body, input: { stdin: 'eA==' }, signal: 9 }), 501, 'unimplemented')
  failed(await stream('process.Process/Connect', {}), 'unimplemented')
  await kill(p.pid)
})

test('E107: closing input, twice; E108: of nobody', async () => {
  const p = await spawned('cat; read -t 5 x; sleep 0.2')
  assert.deepEqual((await call('CloseStdin', { process: { pid: p.pid } })).json, {})
  assert.deepEqual((await call('CloseStdin', { process: { pid: p.pid } })).json, {})
  assert.equal((await p.end()).status, 'exit status 0')
  refused(await call('CloseStdin', { process: { pid: GONE } }), 404, 'not_found')
})

test('E109: a kill is answered when the process is reaped', async () => {
  const p = await spawned('sleep 100')
  assert.deepEqual((await kill(p.pid)).json, {})
  assert.equal((await run(`kill -0 ${p.pid}`)).end.exitCode, 1)
  const end = await p.end()
  assert.deepEqual(end, { exitCode: -1, status: 'signal: killed', error: 'signal: killed' })
  refused(await kill(p.pid), 404, 'not_found')
})

test('E110: TERM that is trapped', async () => {
  const p = await spawned('trap "echo trapped" TERM; echo ready; for i in 1 2 3; do sleep 0.5; echo $i; done')
  await p.says('ready')
  assert.equal((await kill(p.pid, 'SIGNAL_SIGTERM')).status, 200)
  assert.equal((await p.end()).status, 'exit status 0')
  assert.match(p.out, /trapped\n(.*\n)*3\n$/)
})

test('E111: TERM does not wait for who holds the output', async () => {
  const p = await spawned('sleep 100 & echo $!; wait')
  await p.says('\n')
  await kill(p.pid, 'SIGNAL_SIGTERM')
  assert.equal((await p.end()).error, 'signal: terminated')
  process.kill(Number(p.out))
})

test('a process that is dead but whose output is held can be signalled', async () => {
  const p = await spawned('sleep 100 & echo $!')
  await p.says('\n')
  await until(() => !alive(p.pid))
  assert.ok((await list()).some((q) => q.pid === p.pid))
  assert.equal((await kill(p.pid)).status, 200)
  assert.equal((await p.end()).status, 'exit status 0')
  process.kill(Number(p.out))
})

test('E112: other signals', async () => {
  const p = await spawned('sleep 100')
  for (const signal of ['SIGNAL_UNSPECIFIED', 0, 2, undefined]) refused(await call('SendSignal', { process: { pid: p.pid }, signal }), 501, 'unimplemented', /^invalid signal: /)
  assert.ok(alive(p.pid))
  await kill(p.pid)
})

test('E113: processes that the agent did not start', async () => {
  for (const pid of [1, process.pid, Number(process.env.AGENT_PID), 0]) refused(await kill(pid), 404, 'not_found', new RegExp(`^process with pid ${pid} not found$`))
})

test('E114: selecting by tag; E115: a tag of nobody', async () => {
  const [a, b, c] = [await spawned('cat', { request: { tag: 'a' } }), await spawned('cat', { request: { tag: 'b' } }), await terminal()]
  assert.equal((await call('SendInput', { process: { tag: 'b' }, input: { stdin: b64('to b') } })).status, 200)
  await b.says('to b')
  assert.equal((await call('Update', { process: { tag: 'b' } })).status, 200)
  const again = await connect({ tag: 'b' })
  assert.equal(again.pid, b.pid)
  assert.equal((await call('CloseStdin', { process: { tag: 'b' } })).status, 200)
  assert.equal((await again.end()).status, 'exit status 0')
  assert.equal((await call('SendSignal', { process: { tag: 'a' }, signal: 9 })).status, 200)
  assert.equal((await a.end()).error, 'signal: killed')
  assert.equal(a.out, '')
  for (const method of ['SendInput', 'SendSignal', 'CloseStdin', 'Update']) refused(await call(method, { process: { tag: 'x' }, signal: 9, input: { stdin: '' } }), 404, 'not_found', /^process with tag x not found$/)
  failed(await stream('process.Process/Connect', { process: { tag: 'x' } }), 'not_found', /^process with tag x not found$/)
  await kill(c.pid)
})

test('E116: connecting shows what comes from then on; E117: to nobody', async () => {
  const p = await spawned('echo before; read x; echo after')
  await p.says('before')
  const q = await connect({ pid: p.pid })
  assert.deepEqual(q.events, [{ event: { start: { pid: p.pid } } }])
  await input(p.pid, '\n')
  assert.equal((await q.end()).status, 'exit status 0')
  assert.equal(q.out, 'after\n')
  failed(await stream('process.Process/Connect', { process: { pid: GONE } }), 'not_found')
})

test('E118: an end is kept for 30 s', { timeout: 60000 }, async () => {
  const p = await bash('exit 7')
  const ended = Date.now()
  const r = await stream('process.Process/Connect', { process: { pid: p.pid } })
  assert.deepEqual(r.messages, [{ event: { start: { pid: p.pid } } }, { event: { end: { exitCode: 7, exited: true, status: 'exit status 7', error: 'exit status 7' } } }])
  assert.deepEqual(r.trailer, {})
  await until(async () => (await stream('process.Process/Connect', { process: { pid: p.pid } })).trailer.error?.code === 'not_found', 45000)
  assert.ok(Date.now() - ended > 25000)
})

test('E119: a tag that is used again', async () => {
  await start({ process: { cmd: 'sh', args: ['-c', 'exit 7'] }, tag: 'again' })
  assert.equal((await (await connect({ tag: 'again' })).end()).exitCode, 7)
  const p = await spawned('sleep 100', { request: { tag: 'again' } })
  const q = await connect({ tag: 'again' })
  assert.equal(q.pid, p.pid)
  await kill(p.pid)
  assert.equal((await q.end()).error, 'signal: killed')
  assert.equal((await (await connect({ tag: 'again' })).end()).error, 'signal: killed')
})

test('E120: the deadline of a connection is its own', async () => {
  const p = await spawned('sleep 100')
  const q = await stream('process.Process/Connect', { process: { pid: p.pid } }, { headers: { 'connect-timeout-ms': '300' } })
  failed(q, 'deadline_exceeded')
  await sleep(100)
  assert.ok(alive(p.pid))
  assert.equal(p.events.length, 1)
  await kill(p.pid)
  assert.equal((await p.end()).error, 'signal: killed')
})

test('E121: any user may control any process', async () => {
  const p = await spawned('cat', { headers: basic('bob') })
  assert.equal((await call('SendInput', { process: { pid: p.pid }, input: { stdin: b64('x') } }, basic('root'))).status, 200)
  await p.says('x')
  assert.equal((await call('SendSignal', { process: { pid: p.pid }, signal: 9 }, basic('user'))).status, 200)
  await p.done
})

test('E122: a stream of input', async () => {
  const [p, q] = [await spawned('cat'), await spawned('cat')]
  const start = (pid) => envelope({ start: { process: { pid } } })
  const data = (text) => envelope({ data: { input: { stdin: b64(text) } } })
  const send = (...parts) => stream('process.Process/StreamInput', null, { raw: Buffer.concat(parts) })
  const r = await send(start(p.pid), data('one'), envelope({ keepalive: {} }), data('two'), start(q.pid), data('three'))
  assert.deepEqual([r.messages, r.trailer], [[{}], {}])
  await p.says('onetwo')
  await q.says('three')
  failed(await send(data('x')), 'invalid_argument')
  failed(await send(start(GONE), data('x')), 'not_found')
  failed(await send(start(p.pid), envelope({ data: { input: { pty: 'eA==' } } })), 'internal', /^error writing to tty/)
  failed(await send(start(p.pid), data('x').subarray(0, 9)), 'invalid_argument')
  await Promise.all([kill(p.pid), kill(q.pid)])
})
