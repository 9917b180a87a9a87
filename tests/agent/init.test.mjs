// POST /init, /envs and /metrics (envd contract 3.3, 3.4 and 4, checklist 225 to 240).
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HOME, ownAgent, scratch, sha512, until } from './lib.mjs'

const JSON_TYPE = { 'content-type': 'application/json' }
const EMPTY = 'cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e'
const withToken = (token) => ({ 'x-access-token': token })
const opens = async (agent, token) => (await agent.request('GET', '/envs', { headers: token ? withToken(token) : {} })).status === 200
const done = (r) => assert.deepEqual([r.status, r.headers['x-envd-version'], r.headers['cache-control'], r.body.length], [204, '0.6.13', 'no-store', 0])
const denied = (r) => {
  assert.equal(r.status, 401)
  assert.match(r.text, /^access token (validation failed|reset not authorized)$/)
  assert.ok(r.headers['x-envd-version'])
}

test('E225: the first call sets the token; E228: again is harmless; E237: a body is not needed', async () => {
  const a = await ownAgent()
  done(await a.request('POST', '/init'))
  done(await a.init({ accessToken: 'T' }))
  assert.deepEqual([await opens(a, 'T'), await opens(a)], [true, false])
  done(await a.init({ accessToken: 'T' }))
  assert.ok(await opens(a, 'T'))
})

test('E226: what is no request', async () => {
  const a = await ownAgent()
  const cases = ['{bad', '[]', '{"accessToken":""}', '{"accessToken":1}', '{"envVars":[]}', '{"envVars":{"A":1}}', '{"timestamp":"yesterday"}', '{"accessToken":"a\\\\b"}', '{"envVars":{"":"x"}}', '{"envVars":{"A=B":"x"}}']
  for (const body of cases) {
    const r = await a.request('POST', '/init', { headers: JSON_TYPE, body })
    assert.deepEqual([body, r.status, r.headers['x-envd-version']], [body, 400, '0.6.13'])
  }
  assert.ok(await opens(a))
})

test('E227: a wrong token changes nothing', async () => {
  const a = await ownAgent()
  done(await a.init({ accessToken: 'T', envVars: { A: '1' } }))
  denied(await a.init({ accessToken: 'other', envVars: { A: '2' } }))
  const r = await a.request('GET', '/envs', { headers: withToken('T') })
  assert.equal(r.json.A, '1')
  assert.equal(await opens(a, 'other'), false)
})

test('E229: a new token that the host announced; E230: no token', async () => {
  const a = await ownAgent()
  done(await a.init({ accessToken: 'T' }))
  denied(await a.init({}))
  denied(await a.init({ accessToken: 'new' }))
  assert.ok((await a.serial('init', { access_token_hash: sha512('new') })).result)
  denied(await a.init({ accessToken: 'newer' }))
  done(await a.init({ accessToken: 'new' }))
  assert.deepEqual([await opens(a, 'new'), await opens(a, 'T')], [true, false])
  denied(await a.init({}))
  assert.ok((await a.serial('init', { access_token_hash: EMPTY })).result)
  done(await a.init({}))
  assert.ok(await opens(a))
  for (const access_token_hash of ['x', EMPTY.toUpperCase(), 1]) assert.ok((await a.serial('init', { access_token_hash })).error)
})

test('nobody but the host claims an agent that the host has spoken to', async () => {
  const a = await ownAgent()
  assert.ok((await a.serial('init', { access_token: null, env: { A: '1' } })).result)
  for (const body of [{}, { accessToken: 'mine' }, { envVars: { A: '2' } }]) denied(await a.init(body))
  denied(await a.request('POST', '/init'))
  const r = await a.request('GET', '/envs')
  assert.deepEqual([r.status, r.json.A], [200, '1'])
})

test('E231: variables are replaced, kept and removed', async () => {
  const a = await ownAgent()
  const vars = async () => { const { E2B_SANDBOX, ...rest } = (await a.request('GET', '/envs')).json; assert.equal(E2B_SANDBOX, 'true'); return rest }
  for (const [body, wanted] of [[{ envVars: { A: '1', B: '2' } }, { A: '1', B: '2' }], [{ envVars: { B: '3' } }, { B: '3' }], [{}, { B: '3' }], [{ envVars: {} }, {}]]) {
    done(await a.init(body))
    assert.deepEqual(await vars(), wanted)
  }
})

test('E232: a default user; E233: a default directory', async () => {
  const a = await ownAgent()
  const who = async () => (await a.start({ process: { cmd: 'sh', args: ['-c', 'id -un; pwd'] } })).stdout
  done(await a.init({ defaultUser: 'bob' }))
  assert.equal(await who(), 'bob\n/home/bob\n')
  done(await a.init({ defaultUser: '', defaultWorkdir: '' }))
  assert.equal(await who(), 'bob\n/home/bob\n')
  done(await a.init({ defaultUser: 'user', defaultWorkdir: '/usr' }))
  assert.equal(await who(), 'user\n/usr\n')
  scratch('initdir')
  const r = await a.request('POST', '/files?path=initdir/f', { headers: { 'content-type': 'application/octet-stream' }, body: 'x' })
  assert.equal(r.json[0].path, HOME + '/initdir/f')
})

test('E235: an older call is answered and not applied; E236: calls at once', async () => {
  const a = await ownAgent()
  const at = (s) => new Date(Date.UTC(2030, 0, 1, 0, 0, s)).toISOString()
  done(await a.init({ timestamp: at(10), envVars: { A: 'new' } }))
  done(await a.init({ timestamp: at(5), envVars: { A: 'old' } }))
  assert.equal((await a.request('GET', '/envs')).json.A, 'new')
  done(await a.init({ timestamp: at(10), envVars: { A: 'same' } }))
  assert.equal((await a.request('GET', '/envs')).json.A, 'same')
  const all = await Promise.all(Array.from({ length: 50 }, (_, i) => a.init({ envVars: { A: String(i), B: String(i) } })))
  all.forEach(done)
  const { A, B } = (await a.request('GET', '/envs')).json
  assert.equal(A, B)
})

test('E239: the variables; E240: the metrics', async () => {
  const a = await ownAgent()
  done(await a.init({ envVars: { MINE: 'x' } }))
  const e = await a.request('GET', '/envs')
  assert.deepEqual([e.status, e.headers['content-type'], e.headers['cache-control'], e.json.MINE, e.json.E2B_SANDBOX], [200, 'application/json', 'no-store', 'x', 'true'])
  const burner = a.spawned('while :; do :; done').catch(() => {})
  await a.request('GET', '/metrics')
  await until(async () => (await a.request('GET', '/metrics')).json.cpu_used_pct > 1)
  const r = await a.request('GET', '/metrics')
  assert.deepEqual([r.status, r.headers['content-type'], r.headers['cache-control']], [200, 'application/json', 'no-store'])
  const m = r.json
  assert.deepEqual(Object.keys(m).sort(), ['cpu_count', 'cpu_used_pct', 'disk_total', 'disk_used', 'mem_cache', 'mem_total', 'mem_total_mib', 'mem_used', 'mem_used_mib', 'ts'])
  assert.ok(Math.abs(m.ts - Date.now() / 1000) < 60 && m.cpu_count >= 1 && m.cpu_used_pct >= 0 && m.cpu_used_pct <= 100)
  assert.ok(m.mem_used > 0 && m.mem_used < m.mem_total && m.mem_total_mib === Math.floor(m.mem_total / 1048576) && m.mem_cache > 0 && m.disk_used > 0 && m.disk_used < m.disk_total)
  await a.kill((await burner).pid)
})
