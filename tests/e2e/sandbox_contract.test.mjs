// The sandbox API's contract, raw, where a machine is needed and no other file has the item (docs/conformance-sandbox.md has the table).
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { admin, apiKey, busyboxTemplate, eventually, request, viaSandbox } from './lib.mjs'

const guard = { timeout: 300_000 }
const RFC3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z$/
const post = (target, body, more = {}) => request('POST', target, { body, ...more })
const get = async (id) => (await request('GET', `/sandboxes/${id}`)).json
const kill = (id) => request('DELETE', `/sandboxes/${id}`)
const made = []
const create = async (body = {}, version = '') => {
  const r = await post(`${version}/sandboxes`, { templateID: 'busybox', ...body })
  assert.equal(r.status, 201, r.body)
  made.push(r.json.sandboxID)
  return r.json
}
const left = (s) => Date.parse(s.endAt) - Date.parse(s.startedAt)
const about = (ms, s) => assert.ok(Math.abs(ms / 1000 - s) < 2, `${ms} ms, not ${s} s`)

before(busyboxTemplate, guard)
after(async () => { for (const id of made) await kill(id) })

test('S5 S23 S25 S42: what create answers, with all that clients need; S53 S55: lists and details', guard, async () => {
  const s = await create({ timeout: 600, metadata: { kind: 'contract' } })
  assert.match(s.sandboxID, /^i[a-z0-9]{20}$/)
  assert.match(s.templateID, /^[a-z0-9]{20}$/)
  assert.match(s.envdVersion, /^\d+\.\d+\.\d+$/)
  assert.equal(s.alias, 'busybox')
  assert.ok(s.clientID && typeof s.clientID === 'string')
  assert.ok(s.domain === null || s.domain === undefined)
  const listed = (await request('GET', '/v2/sandboxes?metadata=kind%3Dcontract')).json[0]
  for (const key of ['templateID', 'sandboxID', 'clientID', 'startedAt', 'endAt', 'cpuCount', 'memoryMB', 'diskSizeMB', 'state', 'envdVersion']) assert.ok(listed[key], key)
  for (const o of [listed, await get(s.sandboxID)]) {
    assert.deepEqual([o.clientID, o.templateID, o.state, o.alias, o.cpuCount, o.memoryMB], [s.clientID, s.templateID, 'running', 'busybox', 1, 512])
    assert.match(o.startedAt, RFC3339)
    assert.match(o.endAt, RFC3339)
    assert.deepEqual([o.metadata, o.volumeMounts], [{ kind: 'contract' }, []])
  }
  assert.doesNotMatch(JSON.stringify(listed), /token/i)
  const detail = await get(s.sandboxID)
  assert.deepEqual([detail.allowInternetAccess, detail.domain, detail.lifecycle], [null, null, { autoResume: false, onTimeout: 'kill' }])
  assert.deepEqual((await request('GET', '/v2/sandboxes?metadata=kind%3Dcontract')).headers['content-type'], 'application/json; charset=utf-8')
  await kill(s.sandboxID)
})

test('S2: what has no content has no body; S3: statuses; S41: the time counts from the moment that it is ready', guard, async () => {
  const asked = Date.now()
  const made = await post('/v2/sandboxes', { templateID: 'busybox', timeout: 60 })
  const answered = Date.now()
  assert.equal(made.status, 201)
  const id = made.json.sandboxID
  const { startedAt, endAt } = await get(id)
  assert.equal(Date.parse(endAt) - Date.parse(startedAt), 60_000)
  assert.ok(Date.parse(startedAt) > asked + 1 && Date.parse(startedAt) <= answered, `${startedAt} is not within ${asked} to ${answered}`)
  for (const [method, target, body, status] of [
    ['POST', `/sandboxes/${id}/timeout`, { timeout: 60 }, 204], ['POST', `/sandboxes/${id}/refreshes`, {}, 204],
    ['PUT', `/sandboxes/${id}/network`, {}, 204], ['POST', `/sandboxes/${id}/pause`, undefined, 204], ['POST', `/sandboxes/${id}/pause`, undefined, 409],
    ['POST', `/v2/sandboxes/${id}/connect`, { timeout: 60 }, 201], ['POST', `/v2/sandboxes/${id}/connect`, { timeout: 60 }, 200],
    ['POST', `/sandboxes/${id}/resume`, {}, 409], ['GET', `/sandboxes/${id}`, undefined, 200], ['DELETE', `/sandboxes/${id}`, undefined, 204],
    ['DELETE', `/sandboxes/${id}`, undefined, 404],
  ]) {
    const r = await request(method, target, { body })
    assert.deepEqual([method, target, r.status], [method, target, status])
    if (status === 204) assert.deepEqual([r.body, r.headers['content-type'], r.headers['transfer-encoding']], ['', undefined, undefined])
    else assert.notEqual(r.headers['content-length'], '0')
  }
})

test('S116: a signed URL needs no header that names the sandbox', guard, async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 120_000, secure: true })
  await sandbox.files.write('signed.txt', 'by signature')
  const url = new URL(await sandbox.downloadUrl('signed.txt', { useSignatureExpiration: 60 }))
  const read = await request('GET', url.pathname + url.search, { key: null })
  assert.deepEqual([read.status, read.body], [200, 'by signature'])
  const other = url.search.replace(/signature=v1_.{4}/, 'signature=v1_AAAA')
  assert.notEqual((await request('GET', url.pathname + other, { key: null })).status, 200)
  await sandbox.kill()
})

test('S32: times by version; S33: secure by version; S26 S27: tokens', guard, async () => {
  const [one, two] = [await create(), await create({}, '/v2')]
  about(left(await get(one.sandboxID)), 15)
  about(left(await get(two.sandboxID)), 300)
  assert.deepEqual([one.envdAccessToken, two.envdAccessToken?.length], [undefined, 64])
  const health = (s, headers) => request('GET', '/envs', { headers: { ...viaSandbox(s.sandboxID, 49983), ...headers }, key: null })
  assert.deepEqual([(await health(one)).status, (await health(two)).status, (await health(two, { 'X-Access-Token': two.envdAccessToken })).status], [200, 401, 200])
  assert.ok(!two.trafficAccessToken)
  const restricted = await create({ secure: true, timeout: 300, network: { allowPublicTraffic: false } })
  assert.match(restricted.trafficAccessToken, /^[0-9a-f]{64}$/)
  assert.notEqual(restricted.trafficAccessToken, restricted.envdAccessToken)
  const id = restricted.sandboxID
  assert.equal((await post(`/sandboxes/${id}/pause`)).status, 204)
  const again = (await post(`/v2/sandboxes/${id}/connect`, {})).json
  assert.deepEqual([again.envdAccessToken, again.trafficAccessToken], [restricted.envdAccessToken, restricted.trafficAccessToken])
  assert.equal((await get(id)).envdAccessToken, restricted.envdAccessToken)
  const [fork] = (await post(`/sandboxes/${id}/fork`, {})).json
  made.push(fork.sandbox.sandboxID)
  assert.match(fork.sandbox.envdAccessToken, /^[0-9a-f]{64}$/)
  assert.notEqual(fork.sandbox.envdAccessToken, restricted.envdAccessToken)
  assert.notEqual(fork.sandbox.trafficAccessToken, restricted.trafficAccessToken)
  for (const s of [one, two, restricted, fork.sandbox]) await kill(s.sandboxID)
})

test('S10: what is unknown is ignored; S37: mcp is taken, iam is not; S31: times that cannot be', guard, async () => {
  const s = await create({ timeout: 60, mcp: { servers: { a: { b: [1] } } }, somethingNew: { x: 1 }, envVars: {}, metadata: {} }, '/v2')
  await kill(s.sandboxID)
  const refused = async (body, pattern, status = 400) => {
    const r = await post('/sandboxes', { templateID: 'busybox', ...body })
    assert.equal(r.status, status, r.body)
    assert.match(r.json.message, pattern)
    assert.equal(r.json.code, status)
  }
  await refused({ timeout: 0 }, /^Timeout must be greater than 0$/)
  await refused({ timeout: -5 }, /^Timeout must be greater than 0$/)
  await refused({ timeout: 25 * 3600 }, /^Timeout cannot be greater than 24 hours$/)
  await refused({ timeout: 60, iam: { tokens: { a: { audience: 'b', tokenType: 'JWT-SVID' } } } }, /not enabled/)
  await refused({ timeout: 60, templateID: 'busybox:no-such-tag' }, /tag 'no-such-tag' does not exist for template 'busybox'/, 404)
  await refused({ timeout: 60, templateID: 'bad ref!' }, /^Invalid template reference/)
  assert.ok((await request('GET', '/sandboxes')).json.every((x) => made.includes(x.sandboxID)), 'nothing was started')
})

test('S28: references in every form', guard, async () => {
  const { sandboxID, templateID } = await create({ timeout: 60 })
  for (const reference of [' busybox ', 'BusyBox', 'default/busybox', 'busybox:default', templateID, `${templateID}:default`]) {
    const s = await create({ timeout: 60, templateID: reference })
    assert.equal(s.templateID, templateID, reference)
    await kill(s.sandboxID)
  }
  await kill(sandboxID)
})

test('S35 S43: variables of the sandbox, over a resume', guard, async () => {
  const s = await create({ timeout: 300, secure: true, envVars: { MINE: 'a b', PATHLIKE: '/x:$HOME' } })
  const sandbox = await Sandbox.connect(s.sandboxID)
  const show = async (options) => (await sandbox.commands.run('echo "$MINE|$PATHLIKE|$E2B_SANDBOX|$E2B_SANDBOX_ID|$E2B_TEMPLATE_ID"', options)).stdout.trim()
  const expected = `a b|/x:$HOME|true|${s.sandboxID}|${s.templateID}`
  assert.equal(await show(), expected)
  assert.equal(await show({ envs: { MINE: 'over' } }), expected.replace('a b', 'over'))
  await sandbox.pause()
  await sandbox.connect()
  assert.equal(await show(), expected)
  await kill(s.sandboxID)
})

test('S40: the team\'s limit counts what runs, and its 429 is not replayed; S11; S93: forks beyond it fail one by one', guard, async () => {
  admin('create-team', 'Small', '--slug', 'small')
  const key = /e2b_[0-9a-f]+/.exec(admin('create-key', 'small'))[0]
  admin('set-limits', 'small', '--max-sandboxes', '2')
  const share = (yes) => request('PATCH', '/v2/templates/busybox', { body: { public: yes } })
  assert.equal((await share(true)).status, 200)
  try {
    const make = () => post('/v2/sandboxes', { templateID: 'default/busybox', timeout: 600 }, { key })
    const [one, two] = [await make(), await make()]
    assert.deepEqual([one.status, two.status], [201, 201], one.body + two.body)
    const third = await make()
    assert.equal(third.status, 429)
    assert.match(third.json.message, /^you have reached the maximum number of concurrent E2B sandboxes \(2\)\./)
    assert.equal(third.headers['retry-after'], undefined)
    assert.equal((await post(`/sandboxes/${one.json.sandboxID}/pause`, undefined, { key })).status, 204)
    const fourth = await make()
    assert.equal(fourth.status, 201, 'a paused one does not count')
    assert.equal((await post(`/v2/sandboxes/${one.json.sandboxID}/connect`, {}, { key })).status, 429)
    const fork = () => post(`/sandboxes/${two.json.sandboxID}/fork`, { count: 2 }, { key })
    assert.equal((await fork()).status, 400, 'more than the team may ever run')
    admin('set-limits', 'small', '--max-sandboxes', '3')
    const forks = await fork()
    assert.equal(forks.status, 201, forks.body)
    assert.deepEqual(forks.json.map((f) => Boolean(f.sandbox)).sort(), [false, true])
    assert.equal(forks.json.find((f) => f.error).error.code, 429)
    for (const s of (await request('GET', '/v2/sandboxes', { key })).json) await request('DELETE', `/sandboxes/${s.sandboxID}`, { key })
  } finally {
    await share(false)
    admin('delete-team', 'small')
  }
})

test('S16: a blocked team reads and ends, and starts nothing', guard, async () => {
  const s = await create({ timeout: 300 })
  admin('block-team', 'default', '--reason', 'unpaid')
  try {
    for (const [target, body] of [['/sandboxes', { templateID: 'busybox' }], [`/sandboxes/${s.sandboxID}/pause`], [`/sandboxes/${s.sandboxID}/fork`, {}], [`/sandboxes/${s.sandboxID}/timeout`, { timeout: 9 }]]) {
      const r = await post(target, body)
      assert.deepEqual([target, r.status], [target, 403])
      assert.match(r.json.message, /^team is blocked: unpaid$/)
    }
    assert.equal((await request('GET', `/sandboxes/${s.sandboxID}`)).status, 200)
    assert.equal((await kill(s.sandboxID)).status, 204)
  } finally {
    admin('unblock-team', 'default')
  }
})

test('S44 S45 S46 S47 S48 S49 S50 S51 S54: filters, order and pages', guard, async () => {
  const ids = []
  for (let i = 0; i < 3; i++) ids.push((await create({ timeout: 600, metadata: { set: 'pages', n: String(i) } })).sandboxID)
  const list = (query) => request('GET', `/v2/sandboxes?metadata=set%3Dpages${query}`)
  const found = async (query) => (await list(query)).json.map((s) => s.sandboxID)
  assert.deepEqual(await found(''), [...ids].reverse(), 'newest first')
  assert.deepEqual(await found('&order=asc'), ids)
  assert.equal((await list('&order=up')).status, 400)
  assert.deepEqual(await found('%26n%3D1'), [ids[1]], 'all pairs must match')
  assert.deepEqual(await found('%26n%3D7'), [])
  const { templateID } = await get(ids[0])
  assert.deepEqual([await found('&template=busybox'), await found(`&template=${templateID}`)], [[...ids].reverse(), [...ids].reverse()])
  assert.deepEqual(await found('&template=nothing'), [])
  assert.equal((await list('&template=busybox:v1')).status, 400)
  const { startedAt } = await get(ids[1])
  assert.deepEqual(await found(`&order=asc&startedAfter=${encodeURIComponent(startedAt)}`), ids.slice(1), 'inclusive')
  // Pages, while a sandbox goes and one comes.
  const first = await list('&limit=2')
  assert.deepEqual([first.json.map((s) => s.sandboxID), first.headers['x-total-running']], [[ids[2], ids[1]], '3'])
  const token = first.headers['x-next-token']
  assert.ok(token)
  await kill(ids[1])
  const newer = (await create({ timeout: 600, metadata: { set: 'pages' } })).sandboxID
  const second = await list(`&limit=2&nextToken=${encodeURIComponent(token)}`)
  assert.deepEqual([second.json.map((s) => s.sandboxID), second.headers['x-next-token']], [[ids[0]], undefined])
  assert.equal((await list(`&order=asc&nextToken=${encodeURIComponent(token)}`)).status, 400)
  const exact = await list('&limit=3')
  assert.deepEqual([exact.json.length, exact.headers['x-next-token']], [3, undefined], 'no token when nothing follows')
  assert.equal((await post(`/sandboxes/${newer}/pause`)).status, 204)
  assert.deepEqual([await found('&state=paused'), (await found('&state=running')).length, (await found('&state=running,paused')).length, (await found('')).length], [[newer], 2, 3, 3])
  const counted = await list('&state=paused')
  assert.equal(counted.headers['x-total-running'], undefined)
  assert.equal((await list('&state=running,paused')).headers['x-total-running'], '2')
  const v1 = await request('GET', '/sandboxes?metadata=set%3Dpages')
  assert.deepEqual([v1.json.map((s) => s.sandboxID), v1.headers['x-next-token']], [[ids[2], ids[0]], undefined])
  for (const id of [ids[0], ids[2], newer]) await kill(id)
})

test('S66: connecting extends and never shortens; S69: its bodies by version; S70 S76; S72: a timeout does both; S73: up to the longest life; S74: zero ends it', guard, async () => {
  const { sandboxID: id } = await create({ timeout: 600 })
  const ends = async () => Math.round((Date.parse((await get(id)).endAt) - Date.now()) / 1000)
  const near = async (s) => assert.ok(Math.abs(await ends() - s) <= 3, `${await ends()} s, not ${s}`)
  assert.equal((await post(`/sandboxes/${id}/connect`, { timeout: 30 })).status, 200)
  await near(600)
  assert.equal((await post(`/sandboxes/${id}/connect`, { timeout: 900 })).status, 200)
  await near(900)
  assert.equal((await post(`/sandboxes/${id}/connect`, {})).status, 400)
  assert.equal((await post(`/v2/sandboxes/${id}/connect`)).status, 200)
  await near(900)
  assert.equal((await post(`/v2/sandboxes/${id}/connect`, { timeout: 25 * 3600 })).status, 400)
  assert.equal((await post(`/sandboxes/${id}/timeout`, { timeout: 100 })).status, 204)
  await near(100)
  assert.equal((await post(`/sandboxes/${id}/refreshes`, { duration: 30 })).status, 204)
  await near(100)
  assert.equal((await post(`/sandboxes/${id}/refreshes`, { duration: 400 })).status, 204)
  await near(400)
  assert.equal((await post(`/sandboxes/${id}/timeout`, { timeout: 100 * 3600 })).status, 204, 'clamped')
  assert.ok(left(await get(id)) <= 24 * 3600_000)
  assert.equal((await post(`/sandboxes/${id}/timeout`, { timeout: -1 })).status, 400)
  assert.equal((await post(`/sandboxes/${id}/timeout`, { timeout: 0 })).status, 204)
  await eventually(async () => (await request('GET', `/sandboxes/${id}`)).status === 404)
  assert.equal((await post(`/sandboxes/${id}/timeout`, { timeout: 10 })).status, 404)
})

test('S61: bodies of pause; S56: what is paused has the same details; S65: the older resume; S75: times of what is paused', guard, async () => {
  const { sandboxID: id } = await create({ timeout: 300, metadata: { a: 'b' }, network: { denyOut: ['192.0.2.0/24'] } })
  const running = await get(id)
  for (const body of [undefined, '', {}, { memory: true }]) {
    assert.equal((await request('POST', `/sandboxes/${id}/pause`, { body })).status, 204, JSON.stringify(body))
    const paused = await get(id)
    assert.deepEqual({ ...paused, startedAt: 0, endAt: 0 }, { ...running, startedAt: 0, endAt: 0, state: 'paused' })
    const r = await post(`/sandboxes/${id}/resume`, body === '' ? undefined : { timeout: 120 })
    assert.equal(r.status, 201)
    assert.equal(r.json.sandboxID, id)
    about(left(await get(id)), body === '' ? 15 : 120)
    assert.ok(Date.parse((await get(id)).startedAt) > Date.parse(running.startedAt), 'the start of this run')
  }
  assert.equal((await request('POST', `/sandboxes/${id}/pause`)).status, 204)
  for (const [target, body] of [['timeout', { timeout: 60 }], ['refreshes', {}]]) assert.equal((await post(`/sandboxes/${id}/${target}`, body)).status, 404, target)
  assert.equal((await post(`/v2/sandboxes/${id}/connect`)).status, 201)
  for (const [target, body] of [[`/sandboxes/${id}/pause`, { memory: 0 }], [`/v2/sandboxes/${id}/connect`, { memory: 'no' }], [`/sandboxes/${id}/resume`, { memory: 1 }]]) {
    const r = await post(target, body)
    assert.deepEqual([target, r.status], [target, 400])
    assert.match(r.json.message, /'memory'/)
  }
  assert.equal((await get(id)).state, 'running')
  await kill(id)
})

test('S59: ending one that is being paused; S57 S58 S75: and one that is gone', guard, async () => {
  const { sandboxID: id } = await create({ timeout: 300 })
  const [paused, killed] = await Promise.all([post(`/sandboxes/${id}/pause`), new Promise((r) => setTimeout(r, 20)).then(() => kill(id))])
  assert.equal(killed.status, 204)
  assert.ok([204, 404].includes(paused.status), paused.body)
  for (const r of [await kill(id), await request('GET', `/sandboxes/${id}`), await post(`/sandboxes/${id}/pause`)]) {
    assert.equal(r.status, 404)
    assert.deepEqual(r.json, { code: 404, message: `Sandbox "${id}" doesn't exist or you don't have access to it` })
  }
})

test('S78 S79 S80 S81 S82 S86 S88: rules that cannot be; S83 S84: an update replaces all of them', guard, async () => {
  const { sandboxID: id } = await create({ timeout: 300, secure: true, network: { denyOut: ['192.0.2.0/24'], allowOut: ['192.0.2.7'] } })
  const shown = async () => (({ allowOut, denyOut }) => ({ allowOut: allowOut ?? [], denyOut: denyOut ?? [] }))((await get(id)).network ?? {})
  assert.deepEqual(await shown(), { allowOut: ['192.0.2.7'], denyOut: ['192.0.2.0/24'] })
  const put = (body) => request('PUT', `/sandboxes/${id}/network`, { body })
  assert.equal((await put({ denyOut: ['198.51.100.0/24'] })).status, 204)
  assert.deepEqual(await shown(), { allowOut: [], denyOut: ['198.51.100.0/24'] })
  for (const [network, status, pattern] of [
    [{ egressProxy: { address: 'a:1' } }, 403, /egressProxy/],
    [{ rules: { 'a.com': [] } }, 400, /rules|header/],
    [{ denyOut: ['0.0.0.0'] }, 400, /invalid denied CIDR 0\.0\.0\.0/],
    [{ denyOut: ['example.com'] }, 400, /invalid denied CIDR example\.com/],
    [{ allowOut: ['::'] }, 400, /invalid allowed/],
    [{ allowOut: ['example.com'] }, 400, /^When specifying allowed domains in allow out, you must include .ALL_TRAFFIC. in deny out to block all other traffic\.$/],
  ]) {
    for (const r of [await put(network), await post('/v2/sandboxes', { templateID: 'busybox', network })]) {
      assert.deepEqual([r.status, JSON.stringify(network)], [status, JSON.stringify(network)])
      assert.match(r.json.message, pattern)
    }
    assert.deepEqual(await shown(), { allowOut: [], denyOut: ['198.51.100.0/24'] }, 'nothing has changed')
  }
  const open = await post('/sandboxes', { templateID: 'busybox', network: { allowPublicTraffic: false } })
  assert.match(open.json.message, /^You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag\.$/)
  const masked = await post('/sandboxes', { templateID: 'busybox', network: { maskRequestHost: 'a b' } })
  assert.deepEqual([open.status, masked.status], [400, 400])
  assert.equal((await put({})).status, 204)
  assert.deepEqual(await shown(), { allowOut: [], denyOut: [] })
  assert.equal((await put({ allow_internet_access: false })).status, 204)
  assert.equal((await get(id)).allowInternetAccess, false)
  await kill(id)
  assert.equal((await put({})).status, 404)
})

test('S38 S107: volumes; S108: secrets', guard, async () => {
  for (const [method, target] of [['GET', '/volumes'], ['POST', '/volumes'], ['GET', '/secrets'], ['POST', '/secrets']]) {
    const r = await request(method, target, { body: method === 'POST' ? { name: 'a', value: 'b' } : undefined })
    assert.deepEqual([method, target, r.status, r.json.code], [method, target, 400, 400])
  }
  const r = await post('/v2/sandboxes', { templateID: 'busybox', volumeMounts: [{ name: 'v', path: '/mnt' }] })
  assert.deepEqual([r.status, r.json.message], [400, 'Volume mounts are not enabled.'])
})

test('S109: teams; S15: the key before a bearer token', guard, async () => {
  const bearer = { Authorization: `Bearer ${apiKey}` }
  const teams = await request('GET', '/teams', { key: null, headers: bearer })
  assert.equal(teams.status, 200)
  assert.ok(teams.json.some((t) => t.teamID && t.name && t.isDefault === true && /^e2b_[0-9a-f]+$/.test(t.apiKey)), teams.body)
  const usable = teams.json.find((t) => t.isDefault).apiKey
  assert.equal((await request('GET', '/v2/sandboxes', { key: usable })).status, 200)
  assert.equal((await request('GET', '/v2/sandboxes', { key: `e2b_${'0'.repeat(40)}`, headers: bearer })).status, 401)
  assert.equal((await request('GET', '/v2/sandboxes', { headers: { Authorization: 'Bearer nonsense' } })).status, 200)
})
