// usage: node package-client.cjs PACKAGE    A user of one version of the e2b package, with nothing but E2B_DOMAIN and E2B_API_KEY. Prints "done".
const assert = require('node:assert/strict')
const name = process.argv[2]
const { Sandbox, Template } = require(name)
const version = name === 'e2b' ? require('e2b/package.json').version : name.slice(4)
const major = Number(version.split('.')[0]), minor = Number(version.split('.')[1])

async function build() { // with the newest
  const template = Template().fromImage(process.env.IMAGE).setStartCmd(
    `while true; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nserved' | nc -l -p 8000; done`, 'sleep 1')
  await Template.build(template, 'plain', { cpuCount: 1, memoryMB: 512 })
}

async function until(probe) {
  for (const end = Date.now() + 60_000; ;) {
    const r = await probe()
    if (r) return r
    assert.ok(Date.now() < end, 'in time')
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}

async function use() {
  const sandbox = await Sandbox.create('plain', { timeoutMs: 300_000, metadata: { by: version }, envs: { GREETING: 'hello' } })
  const id = sandbox.sandboxId
  assert.equal((await sandbox.commands.run('echo $GREETING; id -un')).stdout, 'hello\nuser\n')
  await sandbox.files.write('dir/a.txt', 'content')
  assert.equal(await sandbox.files.read('/home/user/dir/a.txt'), 'content')
  assert.deepEqual((await sandbox.files.list('dir')).map((e) => e.name), ['a.txt'])
  let screen = ''
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (d) => { screen += Buffer.from(d) }, timeoutMs: 0 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size\n'))
  await until(() => screen.includes('24 80'))
  assert.equal(await sandbox.pty.kill(pty.pid), true)
  const host = sandbox.getHost(8000)
  assert.match(host, /^8000-i[a-z0-9]{20}[\w-]*\.vmon\.test:\d+$/)
  assert.equal(await until(async () => { const r = await fetch(`https://${host}/`); return r.status === 200 && r.text() }), 'served')
  const listed = await Sandbox.list(major < 2 ? undefined : { query: { metadata: { by: version } } })
  const found = (Array.isArray(listed) ? listed : await listed.nextItems()).find((s) => s.sandboxId.split('-')[0] === id.split('-')[0])
  assert.equal(found.metadata.by, version)
  assert.equal(await sandbox.isRunning(), true)
  await sandbox.setTimeout(200_000)
  const again = await Sandbox.connect(id)
  assert.equal((await again.commands.run('cat dir/a.txt')).stdout, 'content')
  if (major >= 2) {
    await (sandbox.pause ?? sandbox.betaPause).call(sandbox)
    const resumed = await Sandbox.connect(id, { timeoutMs: 200_000 })
    assert.equal((await resumed.commands.run('cat dir/a.txt')).stdout, 'content')
  }
  if (major > 2 || minor >= 13) {
    const { snapshotId } = await sandbox.createSnapshot()
    const copy = await Sandbox.create(snapshotId)
    assert.equal((await copy.commands.run('cat dir/a.txt')).stdout, 'content')
    await copy.kill()
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
  }
  await sandbox.kill() // of which older versions say nothing
  assert.equal(await Sandbox.kill(id), false)
}

(process.env.IMAGE ? build() : use()).then(() => { console.log('done'); process.exit(0) }, (e) => { console.error(e); process.exit(1) })
