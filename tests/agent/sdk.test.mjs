// The unmodified SDK against the bare agent (envd contract, checklist 256 to 264).
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { test, before } from 'node:test'
import { init, scratch, until } from './lib.mjs'

const require = createRequire(new URL('../e2e/package.json', import.meta.url))
const { Sandbox, CommandExitError, TimeoutError } = require('e2b')
let sandbox, dir
before(async () => {
  await init({ defaultUser: 'user' })
  sandbox = await Sandbox.create()
  dir = scratch('sdk')
})

test('E256: run echo', async () => {
  const r = await sandbox.commands.run('echo hi')
  assert.equal(r.exitCode, 0)
  assert.equal(r.stdout, 'hi\n')
})

test('E257: exit code becomes CommandExitError', async () => {
  await assert.rejects(sandbox.commands.run('exit 2'), e => e instanceof CommandExitError && e.exitCode === 2 && /exit status 2/.test(e.message))
})

test('E258: timeout', async () => {
  await assert.rejects(sandbox.commands.run('sleep 10', { timeoutMs: 1000 }), TimeoutError)
})

test('E259: absent things are false', async () => {
  assert.equal(await sandbox.commands.kill(999999), false)
  assert.equal(await sandbox.files.exists(dir + '/nope'), false)
  assert.equal(await sandbox.files.makeDir(dir + '/d'), true)
  assert.equal(await sandbox.files.makeDir(dir + '/d'), false)
})

test('E260: write in every way, read in every way', async () => {
  const text = 'héllo\n'.repeat(1000)
  const bytes = new TextEncoder().encode(text)
  const inputs = { string: text, blob: new Blob([text]), buffer: bytes.buffer, stream: new Blob([text]).stream() }
  for (const [name, value] of Object.entries(inputs)) {
    await sandbox.files.write(`${dir}/${name}.txt`, value)
    assert.equal(await sandbox.files.read(`${dir}/${name}.txt`), text, name)
  }
  await sandbox.files.write(`${dir}/gzip.txt`, text, { gzip: true })
  await sandbox.files.write(`${dir}/octet.txt`, text, { useOctetStream: true })
  assert.equal(await sandbox.files.read(`${dir}/gzip.txt`), text)
  assert.equal(await sandbox.files.read(`${dir}/octet.txt`), text)
  const many = await sandbox.files.write([{ path: `${dir}/m/1`, data: 'one' }, { path: `${dir}/m/2`, data: 'two' }])
  assert.deepEqual(many.map(x => x.path), [`${dir}/m/1`, `${dir}/m/2`])
  assert.deepEqual(Buffer.from(await sandbox.files.read(`${dir}/octet.txt`, { format: 'bytes' })), Buffer.from(bytes))
  assert.equal(await (await sandbox.files.read(`${dir}/octet.txt`, { format: 'blob' })).text(), text)
  const read = []
  for await (const chunk of await sandbox.files.read(`${dir}/octet.txt`, { format: 'stream' })) read.push(Buffer.from(chunk))
  assert.equal(Buffer.concat(read).toString(), text)
  await sandbox.files.write(`${dir}/empty`, '')
  assert.equal(await sandbox.files.read(`${dir}/empty`), '')
})

test('E261: info and listing', async () => {
  const info = await sandbox.files.getInfo(`${dir}/string.txt`)
  assert.ok(info.modifiedTime instanceof Date)
  await sandbox.files.makeDir(`${dir}/list/subdir1/deep`)
  await sandbox.files.makeDir(`${dir}/list/subdir2`)
  await sandbox.files.write(`${dir}/list/file1.txt`, 'x')
  const names = (await sandbox.files.list(`${dir}/list`, { depth: 2 })).map(e => e.path.slice(dir.length + 6))
  assert.deepEqual(names, ['file1.txt', 'subdir1', 'subdir1/deep', 'subdir2'])
  await sandbox.files.rename(`${dir}/list/file1.txt`, `${dir}/list/new/file2.txt`)
  assert.equal(await sandbox.files.exists(`${dir}/list/new/file2.txt`), true)
  await sandbox.files.remove(`${dir}/list`)
  assert.equal(await sandbox.files.exists(`${dir}/list`), false)
})

test('E262: watch recursively with entries', async () => {
  const events = []
  await sandbox.files.makeDir(`${dir}/watched`)
  const handle = await sandbox.files.watchDir(`${dir}/watched`, e => events.push(e), { recursive: true, includeEntry: true })
  await sandbox.files.write(`${dir}/watched/sub/a.txt`, 'x')
  await until(() => events.some(e => e.name === 'sub/a.txt'))
  assert.ok(events.some(e => e.name === 'sub'))
  assert.ok(events.find(e => e.name === 'sub/a.txt').entry.path.endsWith('/watched/sub/a.txt'))
  await handle.stop()
})

test('E263: terminal', async () => {
  let out = ''
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: d => { out += Buffer.from(d) }, timeoutMs: 0 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size\n'))
  await until(() => out.includes('24 80'))
  await sandbox.pty.resize(pty.pid, { cols: 120, rows: 40 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size\n'))
  await until(() => out.includes('40 120'))
  assert.equal(await sandbox.pty.kill(pty.pid), true)
})

test('background command with input', async () => {
  const c = await sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
  await sandbox.commands.sendStdin(c.pid, 'abc\n')
  await until(() => c.stdout === 'abc\n')
  await sandbox.commands.closeStdin(c.pid)
  assert.equal((await c.wait()).exitCode, 0)
})

test('kill reaps at once', async () => {
  const c = await sandbox.commands.run('sleep 100', { background: true, timeoutMs: 0 })
  assert.equal(await c.kill(), true)
  await assert.rejects(sandbox.commands.run(`kill -0 ${c.pid}`), CommandExitError)
})

test('E264: signed addresses work without a token', async () => {
  const up = await sandbox.uploadUrl(`${dir}/up.txt`)
  const form = new FormData()
  form.append('file', new Blob(['uploaded']), 'up.txt')
  assert.equal((await fetch(up, { method: 'POST', body: form })).status, 200)
  assert.equal(await (await fetch(await sandbox.downloadUrl(`${dir}/up.txt`))).text(), 'uploaded')
})
