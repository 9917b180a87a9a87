// fromTemplate (template-api 5.2, 13.3, 18.11 228-234): inheritance over three levels, parents that cannot be had, and parents
// that are rebuilt and deleted under a child.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { dir } from './lib.mjs'
import { api, run, startServer } from './server.mjs'

const root = path.join(dir, 'parents')
let server, own, other

before(async () => {
  fs.rmSync(root, { recursive: true, force: true })
  server = await startServer(root, 'one')
  own = api(server)
  server.admin('create-team', 'other')
  other = api(server, server.admin('create-key', 'other').match(/e2b_[0-9a-f]{40}/)[0])
})
after(async () => {
  await server?.stop()
  fs.rmSync(root, { recursive: true, force: true })
})

const guard = { timeout: 300_000 }
const env = (...pairs) => ({ type: 'ENV', args: pairs })
const artifacts = (build) => path.join(server.data, 'builds', build.buildID)

async function ready(name, plan, a = own) {
  const build = await a.build(name, plan)
  const status = await a.finished(build)
  assert.equal(status.status, 'ready', JSON.stringify(status.reason))
  const entries = await a.log(build)
  build.lines = entries.map((e) => e.message)
  build.out = build.lines.filter((l) => l.includes('[stdout]:') && !/^\[(start|ready)/.test(l)).map((l) => l.replace(/^.*\[stdout\]: /, ''))
  return build
}

async function inSandbox(name, command) {
  const sandbox = await Sandbox.create(name, server.sandboxConnection)
  try { return (await sandbox.commands.run(command)).stdout } finally { await sandbox.kill() }
}

const parents = {}

test('228 229 a child inherits ENV and workdir, becomes `user`, and runs the pair of its parent in the context of its parent', guard, async () => {
  server.sandboxConnection = { ...server.connection, sandboxUrl: server.connection.apiUrl }
  parents.first = await ready('first', {
    steps: [env('A', 'first', 'B', 'first'), { type: 'WORKDIR', args: ['/srv'] }, { type: 'USER', args: ['root'] }, ...run('echo 1 > /marker; id -un')],
    startCmd: 'echo "$(id -un) $(pwd) $A $B" > /tmp/started; sleep 3000', readyCmd: 'test -s /tmp/started',
  })
  assert.deepEqual(parents.first.out, ['root'])
  parents.second = await ready('second', { fromTemplate: 'first', steps: [env('B', 'second'), ...run('id -un; pwd; echo $A $B; cat /marker')] })
  assert.deepEqual(parents.second.out, ['user', '/srv', 'first second', '1'])
  assert.ok(parents.second.lines.some((l) => /^CACHED \[base\] FROM TEMPLATE first/.test(l)), parents.second.lines.join('\n'))
  for (const line of [/^Running start command: echo/, /^Waiting for template to be ready: test -s/, /^Template is ready$/])
    assert.ok(parents.second.lines.some((l) => line.test(l)), String(line))
  assert.equal(await inSandbox('second', 'cat /tmp/started; id -un; pwd'), 'root /srv first first\nuser\n/srv\n')
})

test('230 234 D3 a grandchild: the last ENV wins, a ready command alone replaces the pair, and its disk needs no ancestor', guard, async () => {
  parents.third = await ready('third', { fromTemplate: 'second', steps: [env('A', 'third', 'C', '${B}-c'), ...run('echo $A $B $C')], readyCmd: 'true' })
  assert.deepEqual(parents.third.out, ['third second second-c'])
  assert.ok(!parents.third.lines.some((l) => l.startsWith('Running start command')))
  assert.ok(parents.third.lines.includes('Waiting for template to be ready: true'))
  assert.equal((await own.remove(parents.second)).status, 204)
  server.admin('gc')
  assert.ok(!fs.existsSync(artifacts(parents.second)))
  const fourth = await ready('fourth', { fromTemplate: 'third', steps: run('cat /marker; echo $A $B $C') })
  assert.deepEqual(fourth.out, ['1', 'third second second-c'])
  const disk = fs.statSync(path.join(artifacts(fourth), 'rootfs.img')), first = fs.statSync(path.join(artifacts(parents.first), 'rootfs.img'))
  assert.ok(disk.blocks < first.blocks * 1.5, 'four generations take the room of one')
})

async function refused(plan, message, a = own) {
  const build = await a.build('refused', plan)
  const { status, reason } = await a.finished(build)
  assert.equal(status, 'error')
  assert.equal(reason.message, message)
  assert.equal(reason.step, 'base')
}

test('231 232 233 parents that cannot be had: the texts of the resolution, step base', guard, async () => {
  const slug = parents.first && (await own.call('GET', '/templates')).json.find((t) => t.templateID === parents.first.templateID).names[0].split('/')[0]
  await refused({ fromTemplate: 'nope' }, "template 'nope' not found")
  await refused({ fromTemplate: `${slug}/first:nope` }, `tag 'nope' does not exist for template '${slug}/first'`)
  await refused({ fromTemplate: `${slug}/nope` }, `template '${slug}/nope' not found`)
  await refused({ fromTemplate: 'refused' }, "tag 'default' does not exist for template 'refused'")
  await refused({ fromTemplate: `${slug}/first` }, `you don't have access to template '${slug}/first'`, other)
  await refused({ fromTemplate: 'first' }, "template 'first' not found", other)
})

test('233 a public parent of another team can be built on', guard, async () => {
  const { status } = await own.call('PATCH', `/v2/templates/${parents.first.templateID}`, { public: true })
  assert.equal(status, 200)
  const slug = (await own.call('GET', '/templates')).json.find((t) => t.templateID === parents.first.templateID).names[0].split('/')[0]
  const build = await ready('theirs', { fromTemplate: `${slug}/first`, steps: run('cat /marker') }, other)
  assert.deepEqual(build.out, ['1'])
})

test('D3 a parent that is rebuilt and then deleted under a child: the child ends on what it began with, then the parent goes', guard, async () => {
  const child = await own.build('late', { fromTemplate: 'first', steps: run('echo begun; until [ -e /tmp/never ] || [ $((i=i+1)) -gt 120 ]; do usleep 100000; done; cat /marker') })
  await own.logged(child, '[stdout]: begun')
  const rebuilt = await ready('first', { steps: [{ type: 'RUN', args: ['echo 2 > /marker', 'root'] }] })
  assert.equal(rebuilt.templateID, parents.first.templateID)
  assert.equal((await own.remove(parents.first)).status, 204)
  server.admin('gc')
  assert.equal((await own.status(child)).status, 'building', 'the child still builds')
  assert.ok(fs.existsSync(artifacts(parents.first)), 'what the child stands on')
  assert.ok(!fs.existsSync(artifacts(rebuilt)), 'nobody needs this one')
  const { status, reason } = await own.finished(child)
  assert.equal(status, 'ready', JSON.stringify(reason))
  assert.ok((await own.log(child)).some((e) => e.message.endsWith('[stdout]: 1')))
  server.admin('gc')
  assert.ok(!fs.existsSync(artifacts(parents.first)), 'gone with its last child')
})
