// CORS, the access token and the Basic user (envd contract 1.8, checklist 41 to 54), and signatures (3.8, 216 to 223).
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import { before, test } from 'node:test'
import { HOME, basic, failed, init, ownAgent, refused, request, scratch, start, unary } from './lib.mjs'

const TOKEN = 'secret-access-token'
const LIST = 'process.Process/List'
const OCTETS = { 'content-type': 'application/octet-stream' }
const echo = { process: { cmd: 'echo', args: ['hi'] }, stdin: false }
let locked // an agent with a token

before(async () => {
  await init({ defaultUser: 'user' })
  locked = await ownAgent()
  assert.equal((await locked.init({ accessToken: TOKEN })).status, 204)
})

const unauthorised = (r) => {
  assert.equal(r.status, 401)
  assert.equal(r.headers['content-type'], 'application/json; charset=utf-8')
  assert.equal(r.headers['x-content-type-options'], 'nosniff')
  assert.equal(r.body.toString(), '{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}\n')
}
const withToken = (token = TOKEN) => ({ 'x-access-token': token })

test('E41: the preflight is answered before the token is asked for', async () => {
  for (const c of [{ request }, locked]) {
    const r = await c.request('OPTIONS', '/files', { headers: { origin: 'http://a.b', 'access-control-request-method': 'POST', 'access-control-request-headers': 'x-access-token' } })
    assert.equal(r.status, 204)
    const h = (name) => r.headers['access-control-' + name]
    assert.deepEqual([h('allow-origin'), h('allow-methods'), h('allow-headers'), h('max-age')], ['*', 'POST', 'x-access-token', '7200'])
    assert.equal(r.headers.vary, 'Origin, Access-Control-Request-Method, Access-Control-Request-Headers')
  }
  const odd = await request('OPTIONS', '/files', { headers: { origin: 'http://a.b', 'access-control-request-method': 'TRACE' } })
  assert.deepEqual([odd.status, odd.headers['access-control-allow-origin']], [204, undefined])
})

test('E42: an Origin gets the headers of CORS', async () => {
  const r = await request('GET', '/health', { headers: { origin: 'http://a.b' } })
  assert.equal(r.headers['access-control-allow-origin'], '*')
  assert.equal(r.headers['access-control-expose-headers'], 'Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin, Location, Cache-Control, X-Content-Type-Options')
  assert.match(r.headers.vary, /Origin/)
  assert.equal((await request('GET', '/health')).headers['access-control-allow-origin'], undefined)
})

test('E43: without the token a unary call is 401; E44: so is a stream; E45: a wrong token too, and the right one is good', async () => {
  unauthorised(await locked.unary(LIST, {}))
  unauthorised(await locked.stream('process.Process/Start', echo))
  for (const wrong of ['', 'x', TOKEN + 'x', TOKEN.slice(1), TOKEN.toUpperCase()]) unauthorised(await locked.unary(LIST, {}, withToken(wrong)))
  assert.equal((await locked.unary(LIST, {}, withToken())).status, 200)
  assert.equal((await locked.start(echo, { headers: withToken() })).stdout, 'hi\n')
})

test('E46: what is open without a token and what is not; E47: a trailing slash is another path', async () => {
  assert.equal((await locked.request('GET', '/health')).status, 204)
  for (const [method, path] of [['GET', '/metrics'], ['GET', '/envs'], ['POST', '/files/compose'], ['GET', '/nope'], ['GET', '/files/'], ['PUT', '/files'], ['POST', '/health'], ['GET', '/init']])
    unauthorised(await locked.request(method, path))
  for (const path of ['/metrics', '/envs']) assert.equal((await locked.request('GET', path, { headers: withToken() })).status, 200)
})

test('E48: a Basic user; E49: its password is ignored', async () => {
  for (const who of ['root:', 'root:whatever', 'root:a:b']) {
    const r = await start({ process: { cmd: '/bin/bash', args: ['-l', '-c', 'id -un'] }, stdin: false }, { headers: basic(who) })
    assert.equal(r.stdout, 'root\n')
  }
})

test('E50: an unknown user of a unary call; E51: of a stream; E52: of a plain endpoint', async () => {
  const body = { code: 'unauthenticated', message: "invalid username: 'ghost'" }
  const u = await unary('filesystem.Filesystem/Stat', { path: '/' }, basic('ghost'))
  refused(u, 401, 'unauthenticated')
  assert.deepEqual(u.json, body)
  const s = await start(echo, { headers: basic('ghost') })
  failed(s, 'unauthenticated')
  assert.deepEqual(s.trailer.error, body)
  const h = await request('GET', '/health', { headers: basic('ghost') })
  assert.deepEqual([h.status, h.json], [401, body])
})

test('E53: what is no Basic header is absent', async () => {
  for (const authorization of ['Basic !!!', 'Bearer x', 'Basic', 'Basic ' + Buffer.from('nocolon').toString('base64')])
    assert.equal((await start({ process: { cmd: 'id', args: ['-un'] } }, { headers: { authorization } })).stdout, 'user\n', authorization)
})

test('E54: a default user that is gone', async () => {
  const own = await ownAgent()
  const { size } = fs.statSync('/etc/passwd')
  fs.appendFileSync('/etc/passwd', 'guest:x:1002:1000::/home/user:/bin/bash\n')
  try {
    await own.init({ defaultUser: 'guest' })
    assert.equal((await own.start({ process: { cmd: 'id', args: ['-un'] } })).stdout, 'guest\n')
  } finally {
    fs.truncateSync('/etc/passwd', size)
  }
  refused(await own.unary('filesystem.Filesystem/Stat', { path: '/' }), 401, 'unauthenticated', /^invalid default user: 'guest'$/)
  failed(await own.start(echo), 'unauthenticated', /^invalid default user: 'guest'$/)
  assert.equal((await own.unary('filesystem.Filesystem/Stat', { path: '/' }, basic('user'))).status, 200)
})

const sign = (path, op, user, expiration) => 'v1_' + createHash('sha256').update([path, op, user, TOKEN, ...(expiration === undefined ? [] : [expiration])].join(':')).digest('base64').replace(/=+$/, '')
const query = (members) => '/files?' + Object.entries(members).filter(([, v]) => v !== undefined).map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join('&')
const signed = (path, op, user, expiration) => query({ path, username: user, signature: sign(path ?? '', op, user ?? '', expiration), signature_expiration: expiration })
const denied = (r, text) => {
  assert.deepEqual([r.status, r.json], [401, { code: 401, message: text }])
  assert.equal(r.headers['content-type'], 'application/json; charset=utf-8')
}

test('the vectors of the contract', () => {
  assert.equal(sign('/home/user/a b.txt', 'read', 'user'), 'v1_LPQJzXgZWQq6uTzfcTtzuqOiOL7Vx8+iqiI/5QnmqoU')
  assert.equal(sign('test.txt', 'read', ''), 'v1_zcigkBy350ecBfyqtnzBG4RU4Nu7fk1CLj7CRxU6zSQ')
  assert.equal(sign('', 'write', ''), 'v1_82R10Rkzh6YhxTNrfQLnRmIESjDApuO5NxM4bcZr+Ho')
  assert.equal(sign('/home/user/a b.txt', 'write', 'root', 1767225600), 'v1_YYg7J6syq1twLlJXXQak6SBoXX4vYrsFQfixazslwhQ')
})

test('E216: neither header nor signature; E217: a header decides alone', async () => {
  const dir = scratch('signed')
  fs.writeFileSync(dir + '/a b.txt', 'content')
  const path = dir + '/a b.txt'
  denied(await locked.request('GET', query({ path })), 'missing signature query parameter')
  denied(await locked.request('POST', query({ path })), 'missing signature query parameter')
  assert.equal((await locked.request('GET', query({ path }), { headers: withToken() })).text, 'content')
  denied(await locked.request('GET', signed(path, 'read', 'user'), { headers: withToken('wrong') }), 'access token present in header but does not match')
})

test('E218: a signature is for one operation; E219: one user and one path; E220: a default user has none in it', async () => {
  const path = scratch('signed') + '/a b.txt'
  fs.writeFileSync(path, 'content')
  assert.equal((await locked.request('GET', signed(path, 'read', 'user'))).text, 'content')
  denied(await locked.request('POST', signed(path, 'read', 'user'), { headers: OCTETS, body: 'x' }), 'invalid signature')
  assert.equal(fs.readFileSync(path, 'utf8'), 'content')
  for (const wrong of [{ path, username: 'root' }, { path: path + 'x', username: 'user' }, { path }, { username: 'user' }])
    denied(await locked.request('GET', query({ ...wrong, signature: sign(path, 'read', 'user') })), 'invalid signature')
  for (const signature of ['', 'v1_', 'x', sign(path, 'read', 'user') + '=', sign(path, 'read', 'user').slice(3)])
    assert.equal((await locked.request('GET', query({ path, username: 'user', signature }))).status, 401)
  assert.equal((await locked.request('GET', signed('signed/a b.txt', 'read'))).text, 'content')
  const up = await locked.request('POST', signed('signed/up', 'write'), { headers: OCTETS, body: 'new' })
  assert.deepEqual([up.status, fs.readFileSync(HOME + '/signed/up', 'utf8')], [200, 'new'])
})

test('E221: an expiration; E222: one that is no number', async () => {
  const path = scratch('signed') + '/a'
  fs.writeFileSync(path, 'content')
  const now = Math.floor(Date.now() / 1000)
  denied(await locked.request('GET', signed(path, 'read', 'user', now - 5)), 'signature is already expired')
  assert.equal((await locked.request('GET', signed(path, 'read', 'user', now + 60))).text, 'content')
  denied(await locked.request('GET', query({ path, username: 'user', signature: sign(path, 'read', 'user', now + 60), signature_expiration: now + 61 })), 'invalid signature')
  denied(await locked.request('GET', query({ path, username: 'user', signature: sign(path, 'read', 'user', now + 60) })), 'invalid signature')
  const bad = await locked.request('GET', query({ path, signature: 'x', signature_expiration: 'abc' }))
  assert.equal(bad.status, 400)
  assert.match(bad.headers['content-type'], /^text\/plain/)
  assert.match(bad.text, /^Invalid format for parameter signature_expiration: .+\n$/)
})

test('E223: a signature without a path leaves it to the file name', async () => {
  const dir = scratch('signed')
  const body = `--b\r\nContent-Disposition: form-data; name="file"; filename="${dir}/x/named.txt"\r\n\r\nhello\r\n--b--\r\n`
  const r = await locked.request('POST', signed(undefined, 'write'), { headers: { 'content-type': 'multipart/form-data; boundary=b' }, body })
  assert.deepEqual([r.status, r.json[0]?.path], [200, dir + '/x/named.txt'])
  assert.equal(fs.readFileSync(dir + '/x/named.txt', 'utf8'), 'hello')
})
