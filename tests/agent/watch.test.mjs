// Watching directories (envd contract 2.3 and 2.4, checklist 163 to 180).
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import { before, test } from 'node:test'
import { descriptors, failed, init, open, ownAgent, refused, request, scratch, stream, unary, until } from './lib.mjs'

before(() => init({ defaultUser: 'user' }))
const WATCH = 'filesystem.Filesystem/WatchDir'
const call = (method, body, headers) => unary('filesystem.Filesystem/' + method, body, headers)

// Watches; `seen` are the events so far as "TYPE name"; `mark` waits until everything done before it has been reported.
async function watch(dir, options = {}) {
  const w = await open(WATCH, { path: dir, ...options })
  let marks = 0
  const all = () => w.events.filter((m) => m.filesystem).map((m) => m.filesystem)
  w.entries = all
  w.seen = () => all().map((e) => `${e.type.slice(11)} ${e.name}`).filter((e) => !e.includes('.mark'))
  w.mark = async () => {
    const name = `.mark${marks++}`
    fs.writeFileSync(`${dir}/${name}`, '')
    await until(() => all().some((e) => e.name === name))
  }
  w.after = async (act) => {
    const from = w.seen().length
    act()
    await w.mark()
    return w.seen().slice(from)
  }
  return w
}

test('E163: the start comes at once', async () => {
  const w = await watch(scratch('w'))
  assert.deepEqual(w.events[0], { start: {} })
  w.abort()
})

test('E164: what cannot be watched', async () => {
  const dir = scratch('w')
  fs.writeFileSync(dir + '/f', '')
  for (const start of [(body) => stream(WATCH, body), null]) {
    const bad = async (path, code, status, text) => {
      if (start) failed(await start({ path }), code, text)
      else refused(await call('CreateWatcher', { path }), status, code, text)
    }
    await bad(dir + '/none', 'not_found', 404, /^path .*\/none not found: /)
    await bad(dir + '/f', 'invalid_argument', 400, /^path .*\/f not a directory: /)
    await bad('~bob', 'invalid_argument', 400, /cannot expand user-specific home dir/)
  }
})

test('E164: a network file system', { skip: !fs.existsSync('/dev/fuse') && 'there is no /dev/fuse' }, async () => {
  const [real, dir] = [scratch('w'), scratch('mounted')]
  execFileSync('bindfs', [real, dir])
  try {
    failed(await stream(WATCH, { path: dir }), 'invalid_argument', new RegExp(`^cannot watch path on network filesystem: ${dir}$`))
    refused(await call('CreateWatcher', { path: dir }), 400, 'invalid_argument', /^cannot watch path on network filesystem: /)
    const w = await watch(dir, { allowNetworkMounts: true })
    assert.deepEqual(await w.after(() => fs.mkdirSync(dir + '/a')), ['CREATE a'])
    w.abort()
    await w.done.catch(() => {})
  } finally { execFileSync('umount', ['-l', dir]) }
})

test('E165: a file from its creation to its end', async () => {
  const dir = scratch('w')
  const w = await watch(dir)
  assert.deepEqual(await w.after(() => fs.closeSync(fs.openSync(dir + '/a', 'w'))), ['CREATE a'])
  assert.deepEqual(await w.after(() => fs.appendFileSync(dir + '/a', 'x')), ['WRITE a'])
  assert.deepEqual(await w.after(() => fs.chmodSync(dir + '/a', 0o600)), ['CHMOD a'])
  assert.deepEqual(await w.after(() => fs.unlinkSync(dir + '/a')), ['REMOVE a'])
  w.abort()
})

test('E166: a renaming; E167: nothing of what is deeper', async () => {
  const dir = scratch('w')
  fs.mkdirSync(dir + '/sub')
  fs.writeFileSync(dir + '/a', '')
  const w = await watch(dir)
  assert.deepEqual(await w.after(() => fs.renameSync(dir + '/a', dir + '/b')), ['RENAME a', 'CREATE b'])
  assert.deepEqual(await w.after(() => fs.writeFileSync(dir + '/sub/f', 'x')), [])
  w.abort()
})

test('E168: deeper changes when asked for; E169: in a directory that is new', async () => {
  const dir = scratch('w')
  fs.mkdirSync(dir + '/sub')
  const w = await watch(dir, { recursive: true })
  assert.deepEqual(await w.after(() => fs.closeSync(fs.openSync(dir + '/sub/f', 'w'))), ['CREATE sub/f'])
  fs.mkdirSync(dir + '/new')
  await until(() => w.seen().includes('CREATE new'))
  fs.writeFileSync(dir + '/new/f', 'x')
  await until(() => w.seen().includes('CREATE new/f'))
  await until(() => w.seen().includes('WRITE new/f') || w.seen().filter((e) => e === 'CREATE new/f').length)
  w.abort()
})

test('E170: mkdir -p', async () => {
  const dir = scratch('w')
  const w = await watch(dir, { recursive: true })
  for (let i = 0; i < 20; i++) {
    fs.mkdirSync(`${dir}/${i}/b/c`, { recursive: true })
    fs.writeFileSync(`${dir}/${i}/b/c/f`, 'x')
    await until(() => w.seen().includes(`CREATE ${i}/b/c/f`))
    const made = w.seen().filter((e) => e.startsWith(`CREATE ${i}`))
    assert.deepEqual([...new Set(made)], [`CREATE ${i}`, `CREATE ${i}/b`, `CREATE ${i}/b/c`, `CREATE ${i}/b/c/f`])
  }
  w.abort()
})

test('E171: a renamed directory reports under its new name', async () => {
  const dir = scratch('w')
  fs.mkdirSync(dir + '/old/deep', { recursive: true })
  const w = await watch(dir, { recursive: true })
  const seen = await w.after(() => fs.renameSync(dir + '/old', dir + '/new'))
  assert.deepEqual(seen.filter((e) => !e.includes('/')), ['RENAME old', 'CREATE new'])
  fs.writeFileSync(dir + '/new/f', '')
  fs.writeFileSync(dir + '/new/deep/f', '')
  await until(() => w.seen().includes('CREATE new/f') && w.seen().includes('CREATE new/deep/f'))
  assert.ok(!w.seen().some((e) => e.includes(' old/')))
  w.abort()
})

test('E172: entries, where there can be one; E173: none for what is removed', async () => {
  const dir = scratch('w')
  const w = await watch(dir, { includeEntry: true })
  await w.after(() => {
    fs.writeFileSync(dir + '/a', 'x')
    fs.chmodSync(dir + '/a', 0o600)
    fs.renameSync(dir + '/a', dir + '/b')
  })
  await w.after(() => { fs.unlinkSync(dir + '/b'); fs.writeFileSync(dir + '/b', 'again') })
  const of = (type) => w.entries().filter((e) => e.type === 'EVENT_TYPE_' + type && !e.name.includes('.mark'))
  for (const type of ['REMOVE', 'RENAME']) assert.ok(of(type).length > 0 && of(type).every((e) => !e.entry), type)
  const b = of('CREATE').filter((e) => e.name === 'b')
  assert.equal(b.at(-1).entry.path, dir + '/b')
  assert.ok(of('WRITE').filter((e) => e.name === 'b').every((e) => e.entry.size === '5'))
  assert.ok(of('CHMOD').every((e) => !e.entry || e.entry.path.startsWith(dir)))
  w.abort()
  const plain = await watch(dir)
  await plain.after(() => fs.writeFileSync(dir + '/c', 'x'))
  assert.ok(plain.entries().every((e) => !e.entry))
  plain.abort()
})

test('E174: the directory itself', async () => {
  const dir = scratch('w')
  const w = await watch(dir)
  assert.deepEqual(await w.after(() => fs.chmodSync(dir, 0o750)), ['CHMOD .'])
  fs.rmSync(dir, { recursive: true })
  await until(() => w.seen().includes('REMOVE .'))
  w.abort()
})

test('E175: a deadline', async () => {
  const r = await stream(WATCH, { path: scratch('w') }, { headers: { 'connect-timeout-ms': '300' } })
  failed(r, 'deadline_exceeded', /^context deadline exceeded$/)
  assert.deepEqual(r.messages, [{ start: {} }])
})

test('E176: a watcher that is polled; E177: events in order and once; E178: its end', async () => {
  const dir = scratch('w')
  const { watcherId } = (await call('CreateWatcher', { path: dir, recursive: true })).json
  assert.match(watcherId, /^w[a-z0-9]{20}$/)
  const get = () => call('GetWatcherEvents', { watcherId })
  assert.equal((await get()).body.toString(), '{}')
  fs.closeSync(fs.openSync(dir + '/a', 'w'))
  fs.appendFileSync(dir + '/a', 'x')
  fs.unlinkSync(dir + '/a')
  const events = []
  await until(async () => { events.push(...((await get()).json.events ?? [])); return events.length >= 3 })
  assert.deepEqual(events, [{ name: 'a', type: 'EVENT_TYPE_CREATE' }, { name: 'a', type: 'EVENT_TYPE_WRITE' }, { name: 'a', type: 'EVENT_TYPE_REMOVE' }])
  assert.equal((await get()).body.toString(), '{}')
  assert.equal((await call('RemoveWatcher', { watcherId })).body.toString(), '{}')
  for (const method of ['GetWatcherEvents', 'RemoveWatcher']) refused(await call(method, { watcherId }), 404, 'not_found', new RegExp(`^watcher with id ${watcherId} not found$`))
})

test('E179: a watcher outlives its connection', async () => {
  const dir = scratch('w')
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 })
  const r = await request('POST', '/filesystem.Filesystem/CreateWatcher', { headers: { 'content-type': 'application/json' }, body: JSON.stringify({ path: dir }), agent })
  agent.destroy()
  fs.writeFileSync(dir + '/a', '')
  const events = await until(async () => (await call('GetWatcherEvents', { watcherId: r.json.watcherId })).json.events)
  assert.equal(events[0].name, 'a')
  await call('RemoveWatcher', { watcherId: r.json.watcherId })
})

test('E180: the old Python client gets what it knows', async () => {
  const dir = scratch('w')
  const old = { 'user-agent': 'connect-python' }
  const r = await call('Stat', { path: dir }, old)
  assert.deepEqual(r.json, { entry: { name: 'w', type: 'FILE_TYPE_DIRECTORY', path: dir } })
  assert.equal(r.headers['x-e2b-legacy-sdk'], 'true')
  assert.ok((await call('Stat', { path: dir }, { 'user-agent': 'connect-python/1' })).json.entry.owner)
  const w = await open(WATCH, { path: dir, includeEntry: true }, { headers: old })
  fs.writeFileSync(dir + '/a', '')
  await until(() => w.events.length > 1)
  assert.deepEqual(Object.keys(w.events[1].filesystem), ['name', 'type'])
  w.abort()
})

test('watches end with their streams', async () => {
  const dir = scratch('w')
  const own = await ownAgent()
  const before = descriptors(own.pid)
  for (let i = 0; i < 100; i++) (await own.open(WATCH, { path: dir })).abort()
  await until(() => descriptors(own.pid) <= before + 1)
})

test('more events than the kernel holds end the watch with an error', { timeout: 60000 }, async () => {
  const dir = scratch('w')
  const own = await ownAgent()
  const call = (method, body) => own.unary('filesystem.Filesystem/' + method, body)
  const held = Number(fs.readFileSync('/proc/sys/fs/inotify/max_queued_events', 'utf8'))
  const { watcherId } = (await call('CreateWatcher', { path: dir })).json
  process.kill(own.pid, 'SIGSTOP')
  try {
    execFileSync('sh', ['-c', `cd ${dir}; i=0; while [ $i -lt ${held + 100} ]; do : >f; : >g; i=$((i+1)); done`])
  } finally {
    process.kill(own.pid, 'SIGCONT')
  }
  const r = await until(async () => { const a = await call('GetWatcherEvents', { watcherId }); return a.status === 500 && a })
  refused(r, 500, 'internal', /overflow/)
  refused(await call('GetWatcherEvents', { watcherId }), 500, 'internal', /overflow/)
  assert.equal((await call('RemoveWatcher', { watcherId })).status, 200)
})
