// The unmodified command line of E2B: what `template create`, `init` and `migrate` make is built, from images that a registry
// mirror serves under their usual names (docker.io: e2bdev/base, busybox).
import assert from 'node:assert/strict'
import { execFileSync, spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { here, image } from './lib.mjs'
import { api, startServer } from './server.mjs'

const registry = process.env.VMON_E2E_REGISTRY
let root, server, a

before(async () => {
  root = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-cli-'))
  fs.chmodSync(root, 0o711) // QEMU runs under uids of its own
  fs.symlinkSync(path.join(here, 'node_modules'), path.join(root, 'node_modules'))
  for (const name of ['e2bdev/base:latest', 'library/busybox:1'])
    execFileSync('skopeo', ['copy', '-q', '--src-tls-verify=false', '--dest-tls-verify=false', `docker://${image('busybox:1')}`, `docker://${registry}/${name}`])
  server = await startServer(root, 'server', { options: ['--registry-mirror', `http://${registry}`] })
  a = api(server)
})
after(async () => {
  await server?.stop()
  fs.rmSync(root, { recursive: true, force: true })
})

// Runs a program of node in `cwd` with the settings that a user of vmon makes: {status, out}, out without colours.
function node(cwd, ...words) {
  const env = { PATH: process.env.PATH, HOME: root, E2B_API_KEY: server.key, E2B_API_URL: server.connection.apiUrl, NO_UPDATE_NOTIFIER: '1' }
  const r = spawnSync(process.execPath, words, { cwd, env, encoding: 'utf8', timeout: 600_000 })
  return { status: r.status, out: (r.stdout + r.stderr).replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '') }
}
const e2b = (cwd, ...words) => node(cwd, path.join(here, 'node_modules/@e2b/cli/dist/index.js'), ...words)

function made(name, ...files) {
  const dir = path.join(root, name)
  fs.mkdirSync(dir)
  for (const [file, text] of files) fs.writeFileSync(path.join(dir, file), text)
  return dir
}

// Runs a generated build script. `npx tsx` would strip types and resolve './template'; the scripts have no types.
function runScript(dir, script) {
  for (const file of ['template', script]) {
    const text = fs.readFileSync(path.join(dir, `${file}.ts`), 'utf8')
    fs.writeFileSync(path.join(dir, `${file}.mjs`), text.replace("'./template'", "'./template.mjs'"))
  }
  return node(dir, `${script}.mjs`)
}

const newest = async (alias) => {
  const { templateID } = (await a.call('GET', `/templates/aliases/${alias}`)).json
  const [build] = (await a.call('GET', `/templates/${templateID}`)).json.builds
  return { templateID, buildID: build.buildID, ...build }
}

test('235 template create with a Dockerfile, COPY and CMD', async () => {
  const dir = made('create', ['app.txt', 'from the context'],
    ['Dockerfile', 'FROM busybox:1\nENV GREETING=hello\nCOPY app.txt /srv/app.txt\nRUN echo "$GREETING" >/tmp/greeting\nCMD ["sleep", "100000"]\n'])
  const { status, out } = e2b(dir, 'template', 'create', 'cli-create', '-d', 'Dockerfile', '--cpu-count', '1', '--memory-mb', '512')
  assert.equal(status, 0, out)
  assert.match(out, /cli-create/)
  const build = await newest('cli-create')
  assert.deepEqual([build.status, build.cpuCount, build.memoryMB], ['ready', 1, 512])
  const log = (await a.log(build)).map((e) => e.message)
  assert.ok(log.includes('Waiting for template to be ready: sleep 20'), log.join('\n'))
  assert.ok(log.some((l) => /^Running start command: sleep 100000$/.test(l)))
  const sandbox = await Sandbox.create('cli-create', { ...server.connection, sandboxUrl: server.connection.apiUrl })
  try {
    assert.equal((await sandbox.commands.run('cat /srv/app.txt /tmp/greeting')).stdout, 'from the contexthello\n')
    assert.match((await sandbox.commands.run('ps')).stdout, /sleep 100000/)
  } finally {
    await sandbox.kill()
  }
})

test('template create with -c and --ready-cmd; a failing step is exit 1 with the reason', async () => {
  const dir = made('create2', ['Dockerfile', 'FROM busybox:1\nRUN exit 5\n'])
  let { status, out } = e2b(dir, 'template', 'create', 'cli-failing', '-d', 'Dockerfile', '-c', 'sleep 1000', '--ready-cmd', 'true', '--cpu-count', '1', '--memory-mb', '512')
  assert.equal(status, 1, out)
  assert.match(out, /failed to run command 'exit 5': exit status 5/)
  fs.writeFileSync(path.join(dir, 'Dockerfile'), 'FROM busybox:1\n');
  ({ status, out } = e2b(dir, 'template', 'create', 'cli-failing', '-d', 'Dockerfile', '-c', 'sleep 1000', '--ready-cmd', 'true', '--cpu-count', '1', '--memory-mb', '512'))
  assert.equal(status, 0, out)
  assert.equal((await newest('cli-failing')).status, 'ready')
})

test('what template init generates is built, from e2bdev/base', async () => {
  assert.equal(e2b(root, 'template', 'init', '--name', 'cli-init', '--language', 'typescript', '--path', root).status, 0)
  const { status, out } = runScript(path.join(root, 'cli-init'), 'build.prod')
  assert.equal(status, 0, out)
  assert.match(out, /Hello World E2B!/)
  const build = await newest('cli-init')
  assert.deepEqual([build.status, build.cpuCount, build.memoryMB], ['ready', 2, 1024], 'the defaults')
  assert.ok((await a.log(build)).some((e) => /FROM e2bdev\/base/.test(e.message)))
})

test('what template migrate generates is built', async () => {
  const dir = made('migrate', ['app.txt', 'migrated'], ['e2b.Dockerfile', 'FROM busybox:1\nENV A=1\nCOPY app.txt /srv/\nRUN cat /srv/app.txt && echo " $A"\n'],
    ['e2b.toml', 'template_id = "aaaaaaaaaaaaaaaaaaaa"\ndockerfile = "e2b.Dockerfile"\ntemplate_name = "cli-migrate"\ncpu_count = 1\nmemory_mb = 512\n'])
  const { status, out } = e2b(dir, 'template', 'migrate', '--language', 'typescript')
  assert.equal(status, 0, out)
  const built = runScript(dir, 'build.prod')
  assert.equal(built.status, 0, built.out)
  assert.match(built.out, /migrated 1/)
  assert.equal((await newest('cli-migrate')).status, 'ready')
})

test('template list, publish and delete of what was built', async () => {
  const { templateID } = await newest('cli-init')
  const row = e2b(root, 'template', 'list').out.split('\n').find((l) => l.includes(templateID))
  assert.match(row, /cli-init/)
  assert.match(row, /Private/)
  assert.equal(e2b(root, 'template', 'publish', 'cli-init', '-y').status, 0)
  assert.match(e2b(root, 'template', 'list').out.split('\n').find((l) => l.includes(templateID)), /Public/)
  assert.equal(e2b(root, 'template', 'delete', 'cli-init', '-y').status, 0)
  assert.ok(!e2b(root, 'template', 'list').out.includes(templateID))
})
