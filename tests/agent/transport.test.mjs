// HTTP and the Connect protocol (envd contract 1.1 to 1.7, checklist 1 to 40).
import assert from 'node:assert/strict'
import http from 'node:http'
import net from 'node:net'
import { before, test } from 'node:test'
import { PORT, bash, descriptors, dialog, envelope, failed, init, ownAgent, refused, request, scratch, sleep, spawned, start, stream, unary, until } from './lib.mjs'

const LIST = 'process.Process/List'
const START = 'process.Process/Start'
const JSON_TYPE = { 'content-type': 'application/json' }
const STREAM_TYPE = { 'content-type': 'application/connect+json' }
const echo = { process: { cmd: '/bin/bash', args: ['-l', '-c', 'echo hi'] }, stdin: false }

before(() => init({ defaultUser: 'user' }))

test('E1: health is 204 with an empty body; E2: two requests on one connection', async () => {
  const text = await dialog(['GET /health HTTP/1.1\r\nHost: x\r\n\r\n', 'GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'])
  const answers = text.split('HTTP/1.1 204').length - 1
  assert.equal(answers, 2, text)
  assert.equal(text.split('\r\n\r\n').filter((part) => part && !part.startsWith('HTTP/')).join(''), '')
  assert.match(text, /cache-control: no-store/i)
})

test('E3: HTTP/1.0 is answered and closed', async () => {
  assert.match(await dialog(['GET /health HTTP/1.0\r\n\r\n']), /^HTTP\/1\.[01] 204 /)
})

test('E4: an unknown path is 404', async () => {
  const r = await request('GET', '/nope')
  assert.deepEqual([r.status, r.text], [404, '404 page not found\n'])
  assert.match(r.headers['content-type'], /^text\/plain/)
})

test('E5: GET of an RPC is 405 with Allow', async () => {
  const r = await request('GET', '/' + LIST)
  assert.deepEqual([r.status, r.headers.allow], [405, 'POST'])
  assert.equal((await request('HEAD', '/files')).status, 405)
  assert.equal((await request('DELETE', '/health')).status, 405)
})

test('E6: an unknown method of a service is 404', async () => {
  const r = await request('POST', '/process.Process/Nope', { headers: JSON_TYPE, body: '{}' })
  assert.deepEqual([r.status, r.text], [404, '404 page not found\n'])
})

test('E7: another content type is 415 with Accept-Post; E8: a charset is none', async () => {
  for (const type of ['text/plain', 'application/proto', 'application/json2', 'application/json; charset=latin1']) {
    const r = await request('POST', '/' + LIST, { headers: { 'content-type': type }, body: '{}' })
    assert.deepEqual([type, r.status, r.body.length], [type, 415, 0])
    assert.match(r.headers['accept-post'], /application\/json/)
  }
  for (const type of ['application/json; charset=utf-8', 'Application/JSON;charset=UTF-8'])
    assert.equal((await unary(LIST, {}, { 'content-type': type })).status, 200, type)
})

test('E9: List is one JSON object', async () => {
  const r = await unary(LIST, {})
  assert.deepEqual([r.status, r.headers['content-type'], typeof r.json], [200, 'application/json', 'object'])
  assert.equal(Number(r.headers['content-length']), r.body.length)
})

test('E10: a chunked request body; E11: a body in single bytes; E12: an empty one', async () => {
  const chunked = await request('POST', '/' + LIST, { headers: { ...JSON_TYPE, 'transfer-encoding': 'chunked' }, body: '{}' })
  assert.equal(chunked.status, 200)
  const text = `POST /${LIST} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"a": [1,2] }`
  assert.match(await dialog([...text]), /^HTTP\/1\.1 200 /)
  refused(await unary(LIST, ''), 400, 'invalid_argument', /zero-length payload is not a valid JSON object/)
})

test('E13: bad JSON is invalid_argument', async () => {
  for (const body of ['{bad', '[]', '"x"', '{"a":1}}', '{"a":1,}', '{"process":{"pid":1}', '\u0000', 'null x', '{"a":"\ud800"}'.replace('\ud800', '\\ud800')])
    refused(await unary(LIST, body), 400, 'invalid_argument', /^unmarshal message: /)
  refused(await unary(LIST, '['.repeat(100000)), 400, 'invalid_argument', /^unmarshal message: /)
})

test('E14: unknown fields are ignored; E15: snake_case is accepted; E16: white space around', async () => {
  assert.equal((await unary('filesystem.Filesystem/Stat', { path: '/', unknownField: { a: [1] } })).status, 200)
  const dir = scratch('snake')
  for (const name of ['include_entry', 'includeEntry']) {
    const { watcherId } = (await unary('filesystem.Filesystem/CreateWatcher', { path: dir, [name]: true })).json
    await request('POST', `/files?path=snake/${name}`, { headers: { 'content-type': 'application/octet-stream' }, body: 'x' })
    const events = await until(async () => (await unary('filesystem.Filesystem/GetWatcherEvents', { watcher_id: watcherId })).json.events)
    assert.equal(events[0].entry.path, `${dir}/${name}`)
    assert.deepEqual((await unary('filesystem.Filesystem/RemoveWatcher', { watcherId })).json, {})
  }
  assert.equal((await unary('filesystem.Filesystem/Stat', ' \r\n\t{\n  "path": "/"\n}\n \t')).status, 200)
})

test('E17: an enum by name or number; E18: a number in a string; E19: URL-safe and unpadded base64', async () => {
  for (const signal of [9, 'SIGNAL_SIGKILL']) {
    const p = await spawned('sleep 100')
    assert.equal((await unary('process.Process/SendSignal', { process: { pid: String(p.pid) }, signal })).status, 200)
    assert.equal((await p.end()).error, 'signal: killed')
  }
  const p = await spawned('cat')
  for (const stdin of ['-_8', '-_8=', '+/8', '+/8='])
    assert.equal((await unary('process.Process/SendInput', { process: { pid: String(p.pid) }, input: { stdin } })).status, 200)
  await unary('process.Process/CloseStdin', { process: { pid: p.pid } })
  await p.done
  assert.equal(Buffer.from(p.out, 'latin1').toString('hex'), 'fbff'.repeat(4))
  refused(await unary('process.Process/SendSignal', { process: { pid: 'x' }, signal: 9 }), 400, 'invalid_argument')
  refused(await unary('process.Process/SendSignal', { process: { pid: 1, tag: 'a' }, signal: 9 }), 400, 'invalid_argument')
})

test('E20: the protocol version', async () => {
  assert.equal((await unary(LIST, {}, { 'connect-protocol-version': '1' })).status, 200)
  refused(await unary(LIST, {}, { 'connect-protocol-version': '2' }), 400, 'invalid_argument', /^connect-protocol-version must be "1": got "2"$/)
})

test('E21: identity both ways; E22: unknown compression is unimplemented', async () => {
  const r = await unary(LIST, {}, { 'content-encoding': 'identity', 'accept-encoding': 'identity' })
  assert.deepEqual([r.status, r.headers['content-encoding']], [200, undefined])
  refused(await unary(LIST, {}, { 'content-encoding': 'br' }), 501, 'unimplemented', /unknown compression "br"/)
  failed(await stream(START, echo, { headers: { 'connect-content-encoding': 'br' } }), 'unimplemented', /unknown compression "br"/)
})

test('E23: streams are never compressed; E24: their exact content type; E30: every envelope parses and the last ends the stream', async () => {
  const r = await start(echo, { headers: { 'connect-content-encoding': 'identity', 'connect-accept-encoding': 'identity, gzip', 'accept-encoding': 'gzip, br, zstd' } })
  assert.equal(r.headers['content-type'], 'application/connect+json')
  assert.equal(r.headers['content-encoding'], undefined)
  assert.deepEqual(r.flags.filter((f) => f & 1), [])
  assert.deepEqual([r.flags.at(-1), r.flags.slice(0, -1).every((f) => f === 0), r.rest.length], [2, true, 0])
  assert.deepEqual(r.trailer, {})
})

test('E25: a chunked request with its envelope split', async () => {
  const body = envelope(echo)
  const chunk = (b) => Buffer.concat([Buffer.from(b.length.toString(16) + '\r\n'), b, Buffer.from('\r\n')])
  const parts = [Buffer.from(`POST /${START} HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n`),
    chunk(body.subarray(0, 3)), chunk(body.subarray(3, 6)), chunk(body.subarray(6, 40)), chunk(body.subarray(40)), Buffer.from('0\r\n\r\n')]
  const text = await dialog(parts)
  assert.match(text, /"stdout":"aGkK"/)
  assert.ok(text.endsWith('\x02\0\0\0\x02{}\r\n0\r\n\r\n'), JSON.stringify(text.slice(-40)))
})

test('E26: no envelope; E27: two; E28: a length beyond the body', async () => {
  failed(await stream(START, null, { raw: Buffer.alloc(0) }), 'unimplemented', /zero messages/)
  failed(await stream(START, null, { raw: Buffer.concat([envelope(echo), envelope(echo)]) }), 'unimplemented', /multiple messages/)
  for (const n of [1, 4, 5, 20]) failed(await stream(START, null, { raw: envelope(echo).subarray(0, n) }), 'invalid_argument', /^protocol error: /)
  const huge = envelope('{}')
  huge.writeUInt32BE(0xffffffff, 1)
  assert.ok((await stream(START, null, { raw: huge })).trailer.error)
  assert.ok((await stream(START, null, { raw: envelope(echo, 1) })).trailer.error)
})

test('E29: a message of no bytes is all defaults', async () => {
  const r = await start(null, { raw: Buffer.alloc(5) })
  assert.ok(r.pid > 0)
  assert.ok([126, 127].includes(r.end.exitCode), JSON.stringify(r.end))
  assert.deepEqual(r.trailer, {})
})

test('E31: the connection serves on after a stream', async () => {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  let sockets = 0
  const r = await new Promise((resolve, reject) => {
    const q = http.request({ host: '127.0.0.1', port: PORT, path: '/' + START, method: 'POST', headers: STREAM_TYPE, agent }, (answer) => {
      answer.resume().on('end', resolve)
    })
    q.on('socket', (s) => { s.once('close', () => sockets++) }).on('error', reject).end(envelope(echo))
  })
  assert.equal(r, undefined)
  assert.equal((await request('GET', '/health', { agent })).status, 204)
  assert.equal(sockets, 0)
  agent.destroy()
})

test('E32: the start is sent before there is output', async () => {
  const p = await spawned('read x; echo $x')
  assert.deepEqual(p.events, [{ event: { start: { pid: p.pid } } }])
  await unary('process.Process/SendInput', { process: { pid: p.pid }, input: { stdin: Buffer.from('go\n').toString('base64') } })
  await p.done
  assert.equal(p.out, 'go\n')
})

test('E33: a timeout that is no number', async () => {
  for (const t of ['abc', '12345678901', '-1', '1.5']) {
    failed(await stream(START, echo, { headers: { 'connect-timeout-ms': t } }), 'invalid_argument', /^parse timeout: /)
    refused(await unary(LIST, {}, { 'connect-timeout-ms': t }), 400, 'invalid_argument', /^parse timeout: /)
  }
})

test('E34: keep-alive events; E35: output restarts their timer', async () => {
  const pings = (r) => r.messages.filter((m) => m.event?.keepalive).length
  const [silent, busy] = await Promise.all([
    bash('sleep 3.5', { headers: { 'keepalive-ping-interval': '1' } }),
    bash('for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done', { headers: { 'keepalive-ping-interval': '2' } })])
  assert.ok(pings(silent) >= 2, `${pings(silent)} pings`)
  assert.deepEqual(silent.messages.find((m) => m.event?.keepalive), { event: { keepalive: {} } })
  assert.equal(pings(busy), 0)
})

test('E36: intervals that are none', async () => {
  for (const v of ['0', '-5', 'x', '']) {
    const r = await bash('sleep 0.2; echo ok', { headers: { 'keepalive-ping-interval': v } })
    assert.deepEqual([r.stdout, r.messages.filter((m) => m.event?.keepalive).length], ['ok\n', 0])
  }
})

test('E37: Expect: 100-continue', async () => {
  scratch('expect')
  const head = 'POST /files?path=expect/a HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 2\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n'
  const s = net.connect(PORT, '127.0.0.1')
  let text = ''
  s.on('data', (d) => { text += d })
  s.write(head)
  await until(() => text === 'HTTP/1.1 100 Continue\r\n\r\n')
  s.write('ok')
  await new Promise((r) => s.on('close', r))
  assert.match(text, /100 Continue\r\n\r\nHTTP\/1\.1 200 /)
})

test('E38: 300 streams at once', { timeout: 120000 }, async () => {
  let started = 0
  const all = Array.from({ length: 300 }, () => stream(START, { process: { cmd: 'sleep', args: ['5'] }, stdin: false }, { on: (m) => { started += m.event?.start ? 1 : 0 } }))
  await until(() => started === 300, 60000)
  const ends = (await Promise.all(all)).map((r) => r.messages.at(-1).event.end?.status)
  assert.deepEqual(ends, Array(300).fill('exit status 0'))
})

test('E39: a peer that goes away leaves nothing', { timeout: 300000 }, async () => {
  const own = await ownAgent()
  const once = () => new Promise((resolve, reject) => {
    const s = net.connect(PORT, own.host, () => {
      const body = envelope({ process: { cmd: 'sleep', args: ['0.2'] }, stdin: false })
      s.write(Buffer.concat([Buffer.from(`POST /${START} HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\nContent-Length: ${body.length}\r\n\r\n`), body]))
    })
    s.once('data', () => { s.destroy(); resolve() })
    s.on('error', reject)
  })
  const settled = () => until(async () => !(await own.list()).length)
  await Promise.all(Array.from({ length: 10 }, once))
  await settled()
  await sleep(100)
  const before = descriptors(own.pid)
  for (let i = 0; i < 1000; i += 10) await Promise.all(Array.from({ length: 10 }, once))
  await settled()
  await until(() => descriptors(own.pid) <= before)
})

test('E40: header names in any case', async () => {
  for (const name of ['Content-Type', 'content-type', 'CONTENT-TYPE', 'cOnTeNt-TyPe']) {
    const text = await dialog([`POST /${LIST} HTTP/1.1\r\nHOST: x\r\n${name}: application/json\r\ncontent-length: 2\r\nConnection: close\r\n\r\n{}`])
    assert.match(text, /^HTTP\/1\.1 200 /)
  }
})

test('requests that are none are refused and nothing is lost', async () => {
  for (const text of ['GARBAGE\r\n\r\n', 'GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n', 'GET /health HTTP/1.1\r\n' + 'A: b\r\n'.repeat(5000) + '\r\n',
    'POST /files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n', 'POST /files HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n'])
    assert.match(await dialog([text]), /^(HTTP\/1\.1 4\d\d |$)/)
  assert.equal((await request('GET', '/health')).status, 204)
})
