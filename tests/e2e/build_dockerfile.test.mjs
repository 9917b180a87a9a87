// Dockerfiles through the command line and the SDK (template-api 2.1, 8; known-failures D1.19, D2), and start scripts that cannot run.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox, Template } from 'e2b'
import { apiKey, dir, here, image, logTo, port } from './lib.mjs'
import { api, run } from './server.mjs'

const a = api({ port, key: apiKey })
const guard = { timeout: 300_000 }
let home, context
before(() => {
  home = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-cli-'))
  context = path.join(home, 'project')
  fs.mkdirSync(path.join(context, 'app'), { recursive: true })
  fs.mkdirSync(path.join(context, 'docker'))
  fs.writeFileSync(path.join(context, 'app/hello.txt'), `hello ${Date.now()}\n`)
})
after(() => fs.rmSync(home, { recursive: true, force: true }))

// The unmodified command line; its output.
function e2b(...words) {
  const env = { PATH: process.env.PATH, HOME: home, E2B_API_KEY: apiKey, E2B_API_URL: `http://127.0.0.1:${port}`, E2B_DOMAIN: 'localhost', NO_UPDATE_NOTIFIER: '1' }
  const r = spawnSync(process.execPath, [path.join(here, 'node_modules/@e2b/cli/dist/index.js'), ...words], { env, cwd: home, encoding: 'utf8', timeout: 280_000 })
  return { status: r.status, output: `${r.stdout}${r.stderr}` }
}

async function lastBuild(name) {
  const { templateID } = (await a.call('GET', `/templates/aliases/${name}`)).json
  const [{ buildID }] = (await a.call('GET', `/templates/${templateID}`)).json.builds
  return { templateID, buildID }
}

test('235 D1.19 the command line builds a Dockerfile with COPY and CMD, from a context that is not its directory', guard, async () => {
  fs.writeFileSync(path.join(context, 'docker/Dockerfile'), `FROM ${image('busybox:1')} AS base
ENV GREETING=hi
WORKDIR /srv
COPY app ./data
RUN cat data/hello.txt && echo "$GREETING from the step" > said
CMD ["sleep", "43210"]
`)
  const create = () => e2b('template', 'create', 'cli-web', '-p', context, '-d', 'docker/Dockerfile', '--cpu-count', '1', '--memory-mb', '512')
  const first = create()
  assert.equal(first.status, 0, first.output)
  const build = await lastBuild('cli-web'), messages = (await a.log(build)).map((e) => e.message)
  assert.equal((await a.status(build)).status, 'ready')
  assert.ok(messages.includes('Running start command: sleep 43210'), messages.join('\n'))
  assert.ok(messages.includes('Waiting for template to be ready: sleep 20'))
  const sandbox = await Sandbox.create('cli-web')
  try {
    const { stdout } = await sandbox.commands.run('pwd; id -un; cat data/hello.txt said; ps')
    assert.ok(stdout.startsWith(`/srv\nuser\n${fs.readFileSync(path.join(context, 'app/hello.txt'), 'utf8')}hi from the step\n`), stdout)
    assert.match(stdout, / sleep 43210$/m)
  } finally {
    await sandbox.kill()
  }
  const again = create()
  assert.equal(again.status, 0, again.output)
  const cached = (await a.log(await lastBuild('cli-web'))).map((e) => e.message)
  assert.ok(cached.some((m) => /^CACHED \[builder \d\/\d\] COPY app /.test(m)), cached.join('\n'))
})

test('235 a failing step ends the command line with the reason', guard, () => {
  fs.writeFileSync(path.join(context, 'Dockerfile'), `FROM ${image('busybox:1')}\nRUN exit 9\n`)
  const failed = e2b('template', 'create', 'cli-failing', '-p', context, '--cpu-count', '1', '--memory-mb', '512')
  assert.notEqual(failed.status, 0)
  assert.match(failed.output, /failed to run command 'exit 9': exit status 9/)
})

test('D1.10 what .dockerignore names is neither in the hash nor in the upload', guard, async () => {
  const ignoring = path.join(home, 'ignoring')
  fs.mkdirSync(path.join(ignoring, 'big'), { recursive: true })
  fs.writeFileSync(path.join(ignoring, '.dockerignore'), 'big/**\n*.log\n') // the client's patterns are globs: `big` alone would not cover what is in it
  fs.writeFileSync(path.join(ignoring, 'kept.txt'), `kept ${Date.now()}`)
  const template = () => Template({ fileContextPath: ignoring }).fromImage(image('busybox:1')).copy('.', '/ctx').runCmd('find /ctx | sort')
  const hash = async () => JSON.parse(await Template.toJSON(template())).steps[0].filesHash
  const before = await hash()
  fs.writeFileSync(path.join(ignoring, 'noise.log'), 'noise')
  fs.writeFileSync(path.join(ignoring, 'big/blob'), '')
  fs.truncateSync(path.join(ignoring, 'big/blob'), 1 << 30)
  assert.equal(await hash(), before)
  const lines = []
  await Template.build(template(), 'ignoring', { cpuCount: 1, memoryMB: 512, onBuildLogs: (e) => { lines.push(e.message); logTo('ignoring')(e) } })
  const found = lines.filter((l) => l.includes('[stdout]: ')).map((l) => l.replace(/^.*\[stdout\]: /, ''))
  assert.ok(found.includes('/ctx/kept.txt') && !found.some((f) => /big|noise/.test(f)), found.join('\n'))
  assert.ok(fs.statSync(path.join(dir, 'data/files/default', before)).size < 65536, 'the archive is small')
})

test('D2.25 a legacy `ENV key some value` is accepted, and a value with blanks stays one', guard, async () => {
  // The JavaScript SDK makes no step of it (template-api 8.5); Python's sends the pair.
  const legacy = Template().fromDockerfile(`FROM ${image('busybox:1')}\nENV A b c\nRUN echo "[$A]"\n`)
  const lines = []
  await Template.build(legacy, 'legacy-env', { cpuCount: 1, memoryMB: 512, onBuildLogs: (e) => { lines.push(e.message); logTo('legacy-env')(e) } })
  assert.ok(lines.some((l) => /\[stdout\]: \[(b c)?\]$/.test(l)), lines.join('\n'))
  const build = await a.build('legacy-pair', { steps: [{ type: 'ENV', args: ['A', 'b c'] }, ...run('echo "[$A]"')] })
  assert.equal((await a.finished(build)).status, 'ready')
  assert.ok((await a.log(build)).some((e) => e.message.endsWith('[stdout]: [b c]')))
})

test('D2.32 a start script that the default user cannot run fails the build, with its error in the log', guard, async () => {
  const build = await a.build('start-root', { steps: [{ type: 'RUN', args: ['chmod 700 /root; echo "exec sleep 1000" > /root/x.sh; chmod 755 /root/x.sh', 'root'] }],
    startCmd: '/root/x.sh', readyCmd: 'test -e /never' })
  const { status, reason } = await a.finished(build)
  assert.deepEqual([status, reason.step], ['error', 'finalize'])
  assert.match(reason.message, /^start command failed: .*exit status 12[67]/)
  const said = (await a.log(build)).filter((e) => e.message.startsWith('[start] [stderr]: '))
  assert.match(said.map((e) => e.message).join('\n'), /\/root\/x\.sh: Permission denied/)
  assert.equal(said[0].level, 'info')
})
