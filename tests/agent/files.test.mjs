// Uploads, downloads and composing (envd contract 3.4 to 3.7, checklist 181 to 215 and 224).
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import { Readable } from 'node:stream'
import { before, test } from 'node:test'
import { gunzipSync, gzipSync } from 'node:zlib'
import { USER, descriptors, dialog, init, ownAgent, request, residentKib, scratch, until } from './lib.mjs'

before(() => init({ defaultUser: 'user' }))
const url = (path, more = {}) => '/files?' + Object.entries({ path, ...more }).filter(([, v]) => v !== undefined).map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join('&')
const FORM = { 'content-type': 'multipart/form-data; boundary=----b' }
const OCTETS = { 'content-type': 'application/octet-stream' }
const part = (filename, body, name = 'file') => Buffer.concat([Buffer.from(`------b\r\nContent-Disposition: form-data; name="${name}"${filename === undefined ? '' : `; filename="${filename}"`}\r\nContent-Type: application/octet-stream\r\n\r\n`), Buffer.from(body), Buffer.from('\r\n')])
const form = (...parts) => Buffer.concat([...parts, Buffer.from('------b--\r\n')])
const put = (path, body, { headers = {}, ...more } = {}) => request('POST', url(path, more), { headers: { ...OCTETS, ...headers }, body })
const post = (path, body, { headers = {}, ...more } = {}) => request('POST', url(path, more), { headers: { ...FORM, ...headers }, body })
const get = (path, headers = {}, more = {}) => request('GET', url(path, more), { headers })
const fails = (r, status, message) => {
  assert.equal(r.status, status, r.text)
  assert.equal(r.headers['content-type'], 'application/json; charset=utf-8')
  assert.equal(r.headers['x-content-type-options'], 'nosniff')
  assert.equal(r.json.code, status)
  assert.match(r.json.message, message)
  assert.ok(r.text.endsWith('}\n'))
}
const read = (path) => fs.readFileSync(path, 'utf8')
const facts = (path) => { const s = fs.statSync(path); return [s.mode & 0o7777, s.uid, s.gid] }

test('E181: a form with a path', async () => {
  const dir = scratch('up')
  const r = await post('up/a.txt', form(part('a.txt', 'hello')))
  assert.equal(r.status, 200)
  assert.match(r.headers['content-type'], /^application\/json/)
  assert.deepEqual(r.json, [{ path: dir + '/a.txt', name: 'a.txt', type: 'file' }])
  assert.deepEqual([read(dir + '/a.txt'), ...facts(dir + '/a.txt')], ['hello', 0o644, USER.uid, USER.gid])
})

test('E182: a form without; E183: a path beats the name; E184: two files; E188: odd names', async () => {
  const dir = scratch('up')
  assert.deepEqual((await post(undefined, form(part(dir + '/x/y.txt', 'in')))).json, [{ path: dir + '/x/y.txt', name: 'y.txt', type: 'file' }])
  assert.deepEqual([read(dir + '/x/y.txt'), ...facts(dir + '/x')], ['in', 0o755, USER.uid, USER.gid])
  for (const name of ['undefined', 'blob', 'other/dir']) assert.deepEqual((await post(dir + '/p', form(part(name, name)))).json.map((f) => f.path), [dir + '/p'])
  const two = await post(undefined, form(part('up/1', 'one'), part('up/2', 'two')))
  assert.deepEqual(two.json.map((f) => f.path), [dir + '/1', dir + '/2'])
  assert.deepEqual([read(dir + '/1'), read(dir + '/2')], ['one', 'two'])
  for (const name of ['文档.txt', 'with space.txt', 'semi;colon', "quote'"]) {
    const r = await post(undefined, form(part(`${dir}/${name}`, name)))
    assert.deepEqual([r.status, r.json?.[0]?.path], [200, `${dir}/${name}`])
    assert.equal(read(`${dir}/${name}`), name)
  }
  const quoted = form(Buffer.from(`------b\r\nContent-Disposition: form-data; name="file"; filename="${dir}/a\\"b"\r\n\r\nq\r\n`))
  assert.equal((await post(undefined, quoted)).json[0].path, dir + '/a"b')
  const extended = form(Buffer.from(`------b\r\ncontent-disposition: form-data; name=file; filename*=utf-8''${encodeURIComponent(dir + '/ü')}\r\n\r\ne\r\n`))
  assert.equal((await post(undefined, extended)).json[0].path, dir + '/ü')
})

test('E185: two files for one path; E186: other parts; malformed forms', async () => {
  const dir = scratch('up')
  fails(await post(dir + '/a', form(part('1', 'one'), part('2', 'two'))), 400, /^you cannot upload multiple files to the same path/)
  assert.equal(read(dir + '/a'), 'one')
  fails(await post(undefined, form(part(dir + '/b', 'one'), part(dir + '/b', 'two'))), 400, /^you cannot upload multiple files to the same path/)
  const r = await post(undefined, form(part('x', 'no', 'other'), part(dir + '/c', 'yes'), part(undefined, 'no', 'field')))
  assert.deepEqual(r.json.map((f) => f.path), [dir + '/c'])
  assert.deepEqual((await post(undefined, form(part('x', 'no', 'other')))).text.trim(), '[]')
  fails(await post(undefined, form(part(undefined, 'no name'))), 400, /.+/)
  for (const body of ['', 'garbage', '------b\r\n', form(part(dir + '/d', 'x')).subarray(0, -12)]) fails(await post(undefined, body), 500, /^error (parsing multipart form|reading form): /)
  fails(await request('POST', url(dir + '/e'), { headers: { 'content-type': 'multipart/form-data' }, body: 'x' }), 500, /^error parsing multipart form: /)
})

test('E187: a large form in pieces, at constant memory', { timeout: 300000 }, async () => {
  const own = await ownAgent()
  const dir = scratch('up')
  const size = process.env.VMON_SOAK ? 1 << 30 : 1 << 27
  const piece = Buffer.alloc(65521, 'abcdefghij')
  const whole = Math.floor(size / piece.length)
  const pieces = (function* () {
    const head = part(dir + '/big', '').subarray(0, -2)
    for (const byte of head) yield Buffer.from([byte])
    for (let i = 0; i < whole; i++) yield piece
    for (const byte of Buffer.from('\r\n------b--\r\n')) yield Buffer.from([byte])
  })()
  let most = 0
  const timer = setInterval(() => { most = Math.max(most, residentKib(own.pid)) }, 20)
  const r = await own.request('POST', '/files', { headers: FORM, body: Readable.from(pieces) })
  clearInterval(timer)
  assert.equal(r.status, 200)
  assert.equal(fs.statSync(dir + '/big').size, whole * piece.length)
  assert.ok(most < 16384, `${most} KiB`)
})

test('E189: raw content; E190: of unknown length, and none; E191: compressed', async () => {
  const dir = scratch('up')
  const bytes = Buffer.from(Array.from({ length: 300000 }, (_, i) => (i * 31) & 255))
  assert.deepEqual((await put(dir + '/b', bytes)).json, [{ path: dir + '/b', name: 'b', type: 'file' }])
  assert.ok(fs.readFileSync(dir + '/b').equals(bytes))
  fails(await put(undefined, 'x'), 400, /^path query parameter is required for raw body upload$/)
  assert.equal((await put(dir + '/c', Readable.from([bytes, bytes]))).status, 200)
  assert.equal(fs.statSync(dir + '/c').size, 600000)
  assert.equal((await put(dir + '/b', '')).status, 200)
  assert.equal(fs.statSync(dir + '/b').size, 0)
  assert.equal((await put(dir + '/g', gzipSync(bytes), { headers: { 'content-encoding': 'gzip' } })).status, 200)
  assert.ok(fs.readFileSync(dir + '/g').equals(bytes))
  const members = Buffer.concat([gzipSync('one'), gzipSync('two')])
  assert.equal((await put(dir + '/m', members, { headers: { 'content-encoding': 'gzip' } })).status, 200)
  assert.equal(read(dir + '/m'), 'onetwo')
  fails(await put(dir + '/x', 'no gzip', { headers: { 'content-encoding': 'gzip' } }), 400, /.+/)
  fails(await put(dir + '/x', 'x', { headers: { 'content-encoding': 'br' } }), 400, /^error decompressing request body: unsupported Content-Encoding: br, supported: \[gzip\]$/)
})

test('E192: a compressed form; E193: other content types', async () => {
  const dir = scratch('up')
  assert.equal((await post(undefined, gzipSync(form(part(dir + '/a', 'zipped'))), { headers: { 'content-encoding': 'gzip' } })).status, 200)
  assert.equal(read(dir + '/a'), 'zipped')
  for (const type of ['text/plain', '']) fails(await request('POST', url(dir + '/a'), { headers: type ? { 'content-type': type } : {}, body: 'x' }), 400, /^unsupported content type: .*, expected multipart\/form-data or application\/octet-stream$/)
  assert.equal(read(dir + '/a'), 'zipped')
})

test('E194: onto a directory; E195: under a file; E196: over a longer file; E197: as root; E198: as nobody', async () => {
  const dir = scratch('up')
  fs.mkdirSync(dir + '/d')
  fails(await put(dir + '/d', 'x'), 400, new RegExp(`^path is a directory: ${dir}/d$`))
  fs.writeFileSync(dir + '/f', 'a longer content', { mode: 0o600 })
  fs.chownSync(dir + '/f', 0, 0)
  fails(await put(dir + '/f/x/y', 'x'), 500, new RegExp(`^error ensuring directories: path is a file: ${dir}/f$`))
  assert.equal((await put(dir + '/f', 'short')).status, 200)
  assert.deepEqual([read(dir + '/f'), ...facts(dir + '/f')], ['short', 0o600, USER.uid, USER.gid])
  fs.symlinkSync('f', dir + '/link')
  assert.equal((await put(dir + '/link', 'through')).status, 200)
  assert.deepEqual([read(dir + '/f'), fs.readlinkSync(dir + '/link')], ['through', 'f'])
  const r = await put('vmon-test/rel', 'x', { username: 'root' })
  assert.deepEqual([r.json[0].path, ...facts('/root/vmon-test/rel')], ['/root/vmon-test/rel', 0o644, 0, 0])
  fs.rmSync('/root/vmon-test', { recursive: true })
  fails(await put(dir + '/g', 'x', { username: 'ghost' }), 401, /^error looking up user 'ghost': user: unknown user ghost$/)
  fails(await put('~bob', 'x'), 400, /^error expanding and resolving path '~bob': /)
})

test('E199: onto a full file system', async () => {
  const dir = scratch('full')
  execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=256k,nr_inodes=8', 'tmpfs', dir])
  try {
    fails(await put(dir + '/f', Buffer.alloc(1 << 20)), 507, /^attempted to write 1048576 bytes: not enough disk space available$/)
    fails(await put(dir + '/g', Readable.from([Buffer.alloc(1 << 20)])), 507, /not enough disk space available/)
    fs.rmSync(dir + '/f')
    for (let i = 0; i < 20; i++) try { fs.writeFileSync(dir + '/i' + i, '') } catch { break }
    fails(await put(dir + '/h', 'x'), 507, /^not enough inodes available/)
  } finally { execFileSync('umount', [dir]) }
})

test('E200: metadata, replaced by each upload; E201: what is no metadata', async () => {
  const dir = scratch('up')
  const attributes = () => execFileSync('getfattr', ['-d', '-m', '^user\\.', dir + '/a'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).split('\n').filter((l) => l.startsWith('user.'))
  const r = await put(dir + '/a', 'x', { headers: { 'X-Metadata-Foo': 'bar', 'x-metadata-Two': '2' } })
  assert.deepEqual(r.json[0].metadata, { foo: 'bar', two: '2' })
  assert.deepEqual(attributes(), ['user.e2b.foo="bar"', 'user.e2b.two="2"'])
  execFileSync('setfattr', ['-n', 'user.mine', '-v', '1', dir + '/a'])
  assert.equal((await put(dir + '/a', 'x')).json[0].metadata, undefined)
  assert.deepEqual(attributes(), ['user.mine="1"'])
  const many = Object.fromEntries(Array.from({ length: 5 }, (_, i) => ['x-metadata-' + i, 'v'.repeat(900)]))
  for (const headers of [{ ['x-metadata-' + 'k'.repeat(247)]: 'v' }, many]) fails(await put(dir + '/b', 'x', { headers }), 400, /^invalid metadata: /)
  assert.match(await dialog([`POST ${url(dir + '/b')} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/octet-stream\r\nX-Metadata-A: a\xe9b\r\nContent-Length: 1\r\n\r\nx`]), /^HTTP\/1\.1 400 [\s\S]*invalid metadata: /)
  assert.ok(!fs.existsSync(dir + '/b'))
  assert.equal((await put(dir + '/b', 'x', { headers: { ['x-metadata-' + 'k'.repeat(246)]: 'v' } })).status, 200)
})

test('E202: onto a pseudo file system', async () => {
  const path = '/proc/self/comm'.replace('self', process.env.AGENT_PID)
  assert.equal((await put(path, 'renamed', { headers: { 'x-metadata-a': 'b' }, username: 'root' })).status, 200)
  assert.equal(read(path), 'renamed\n')
})

test('E203: a text; E204: an empty file', async () => {
  const dir = scratch('down')
  fs.writeFileSync(dir + '/a.txt', 'text\n')
  const r = await get('down/a.txt')
  assert.deepEqual([r.status, r.text, r.headers['content-length'], r.headers['content-disposition']], [200, 'text\n', '5', 'inline; filename=a.txt'])
  assert.match(r.headers['content-type'], /^text\/plain; charset=utf-8$/)
  assert.match(r.headers.vary, /Accept-Encoding/)
  assert.equal(r.headers['accept-ranges'], 'bytes')
  assert.ok(Date.parse(r.headers['last-modified']) > 0)
  fs.writeFileSync(dir + '/empty', '')
  const e = await get(dir + '/empty')
  assert.deepEqual([e.status, e.headers['content-length'], e.headers['transfer-encoding']], [200, '0', undefined])
  fs.writeFileSync(dir + '/noext', Buffer.from([0, 1, 2, 255]))
  assert.equal((await get(dir + '/noext')).headers['content-type'], 'application/octet-stream')
  fs.writeFileSync(dir + '/page.html', '<html>')
  assert.match((await get(dir + '/page.html')).headers['content-type'], /^text\/html/)
})

test('E205: nothing, or a directory; E206: as nobody, or below another home', async () => {
  scratch('down')
  fails(await get('x-none'), 404, /^path '\/home\/user\/x-none' does not exist$/)
  fails(await get('down'), 400, /^path '\/home\/user\/down' is a directory$/)
  fails(await get('/etc/passwd/x'), 500, /.+/)
  fails(await get('down', {}, { username: 'ghost' }), 401, /^error looking up user 'ghost': user: unknown user ghost$/)
  fails(await get('~bob'), 400, /^error expanding and resolving path '~bob': /)
})

test('E207: how the query is decoded; E208: how the name is given', async () => {
  const dir = scratch('down')
  for (const name of ['a b.txt', 'a+b.txt']) fs.writeFileSync(`${dir}/${name}`, name)
  assert.equal((await request('GET', '/files?path=down/a+b.txt')).text, 'a b.txt')
  assert.equal((await request('GET', '/files?path=down/a%2Bb.txt')).text, 'a+b.txt')
  const names = { 'my document.pdf': 'inline; filename="my document.pdf"', '文档.pdf': "inline; filename*=utf-8''%E6%96%87%E6%A1%A3.pdf", 'a"b\\c': 'inline; filename="a\\"b\\\\c"', 'plain-1_2.x': 'inline; filename=plain-1_2.x' }
  for (const [name, wanted] of Object.entries(names)) {
    fs.writeFileSync(`${dir}/${name}`, '')
    assert.equal((await get(`${dir}/${name}`)).headers['content-disposition'], wanted)
  }
})

test('E209: an encoding that is offered; E210: none that is left', async () => {
  const f = scratch('down') + '/f'
  fs.writeFileSync(f, 'content'.repeat(1000))
  for (const accept of ['gzip', 'gzip, deflate', '*', 'br;q=1, gzip;q=0.5', 'identity;q=0, gzip']) {
    const r = await get(f, { 'accept-encoding': accept })
    assert.equal(r.status, 200, accept)
    const bytes = r.headers['content-encoding'] === 'gzip' ? gunzipSync(r.body) : r.body
    assert.ok(bytes.equals(fs.readFileSync(f)))
    if (accept.includes('identity;q=0')) assert.equal(r.headers['content-encoding'], 'gzip')
  }
  for (const accept of ['br, identity;q=0', 'br;q=1, *;q=0', 'gzip;q=0, identity;q=0']) fails(await get(f, { 'accept-encoding': accept }), 406, /^error parsing Accept-Encoding: no acceptable encoding found, supported: \[gzip\]$/)
})

test('E211: ranges; E212: beyond the end; E213: with identity refused; E214: conditions', async () => {
  const f = scratch('down') + '/f'
  fs.writeFileSync(f, '0123456789')
  const range = async (value) => { const r = await get(f, { range: value, 'accept-encoding': 'gzip, deflate' }); return [r.status, r.headers['content-range'], r.headers['content-encoding'], r.text] }
  assert.deepEqual(await range('bytes=0-4'), [206, 'bytes 0-4/10', undefined, '01234'])
  assert.deepEqual(await range('bytes=-3'), [206, 'bytes 7-9/10', undefined, '789'])
  assert.deepEqual(await range('bytes=8-'), [206, 'bytes 8-9/10', undefined, '89'])
  assert.deepEqual(await range('bytes=8-100'), [206, 'bytes 8-9/10', undefined, '89'])
  assert.deepEqual(await range('bytes=-100'), [206, 'bytes 0-9/10', undefined, '0123456789'])
  const beyond = await get(f, { range: 'bytes=10-' })
  assert.deepEqual([beyond.status, beyond.headers['content-range']], [416, 'bytes */10'])
  fails(await get(f, { range: 'bytes=0-4', 'accept-encoding': 'gzip;q=1, *;q=0' }), 406, /^identity encoding not acceptable for Range or conditional request$/)
  const since = async (when) => (await get(f, { 'if-modified-since': new Date(when).toUTCString() })).status
  assert.deepEqual([await since(Date.now() + 3600000), await since(0)], [304, 200])
})

test('E215: whoever asks, the agent may', async () => {
  const f = scratch('down') + '/closed'
  fs.writeFileSync(f, 'secret', { mode: 0o600 })
  assert.equal((await get(f)).text, 'secret')
})

test('files of pseudo file systems are read to their end', async () => {
  const r = await get('/proc/version')
  assert.deepEqual([r.status, r.text], [200, read('/proc/version')])
})

test('E224: composing', async () => {
  const dir = scratch('compose')
  const compose = (body) => request('POST', '/files/compose', { headers: { 'content-type': 'application/json' }, body: typeof body === 'string' ? body : JSON.stringify(body) })
  const make = (name, text) => fs.writeFileSync(`${dir}/${name}`, text)
  make('1', 'one'); make('2', 'two'); make('old', 'old')
  const r = await compose({ source_paths: ['compose/1', dir + '/2'], destination: 'compose/all' })
  assert.deepEqual([r.status, r.json], [200, { path: dir + '/all', name: 'all', type: 'file' }])
  assert.deepEqual([read(dir + '/all'), ...facts(dir + '/all')], ['onetwo', 0o644, USER.uid, USER.gid])
  assert.deepEqual(fs.readdirSync(dir).sort(), ['all', 'old'])
  make('1', 'one')
  fs.mkdirSync(dir + '/d')
  const cases = [['{bad', 400, /.+/], [{ source_paths: [], destination: 'x' }, 400, /^source_paths must not be empty$/], [{ source_paths: ['compose/1'] }, 400, /^destination is required$/],
    [{ source_paths: ['compose/1'], destination: 'compose/old', username: 'ghost' }, 401, /ghost/], [{ source_paths: ['compose/1'], destination: 'compose/1' }, 400, /.+/],
    [{ source_paths: ['compose/1', 'compose/none'], destination: 'compose/old' }, 404, /^source file not found: /], [{ source_paths: ['compose/1', 'compose/d'], destination: 'compose/old' }, 400, /^source path is not a regular file: /]]
  for (const [body, status, message] of cases) fails(await compose(body), status, message)
  assert.deepEqual(fs.readdirSync(dir).sort(), ['1', 'all', 'd', 'old'])
  assert.deepEqual([read(dir + '/1'), read(dir + '/old')], ['one', 'old'])
})

test('an upload that is cut off leaves no descriptor', async () => {
  const own = await ownAgent()
  const dir = scratch('up')
  const before = descriptors(own.pid)
  for (let i = 0; i < 50; i++) {
    let got = false
    await dialog([`POST ${url(dir + '/cut' + i)} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n`],
      { host: own.host, stop: () => { got = true; return true } })
    assert.ok(got)
  }
  await until(() => descriptors(own.pid) <= before + 1)
})
