// The template API around a build that runs: the raw answer of the trigger, what it takes, status, logs and the SDK's own view.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Template, defaultBuildLogger } from 'e2b'
import { apiKey, busybox, dir, eventually, image, port, raw } from './lib.mjs'
import { api, processes, run } from './server.mjs'

const a = api({ port, key: apiKey })
let context
before(() => { context = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-context-')) })
after(() => fs.rmSync(context, { recursive: true }))

test('1 13 86 103 121 the trigger answers an empty 202 with a length, ignores what it does not know, and once', async () => {
  const created = (await a.register('api-raw')).json
  const body = JSON.stringify({ fromImage: image('busybox:1'), startCmd: '', readyCmd: '', foo: 1,
    steps: [{ type: 'RUN', args: ['echo hello from the step'], force: true, forceUpload: true, gzip: false, resolveSymlinks: true, foo: {} }] })
  const head = `POST /v2/templates/${created.templateID}/builds/${created.buildID} HTTP/1.1\r\nHost: x\r\nX-API-Key: ${apiKey}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n`
  const answer = await raw(head + body)
  assert.match(answer, /^HTTP\/1\.1 202 /)
  assert.match(answer, /\r\nContent-Length: 0\r\n/i)
  assert.doesNotMatch(answer, /\r\nTransfer-Encoding:/i)
  assert.ok(answer.endsWith('\r\n\r\n'))
  const again = await a.trigger(created)
  assert.deepEqual([again.status, again.json.message], [400, 'build is not in waiting state'])
  // Poll as fast as it goes: the first terminal status already has the last line behind it.
  const { status } = await a.finished(created)
  const entries = await a.log(created)
  assert.equal(status, 'ready')
  assert.match(entries.at(-1).message, /^Build finished, took /)
  assert.ok(entries.some((e) => /\[stdout\]: hello from the step$/.test(e.message)))
  assert.ok(!entries.some((e) => /Running start command|Waiting for template to be ready/.test(e.message)), 'empty commands are none')
  for (const e of entries) {
    assert.ok(['debug', 'info', 'warn', 'error'].includes(e.level))
    assert.match(e.step ?? 'base', /^(base|finalize|[1-9]\d*)$/)
    assert.ok(!Number.isNaN(Date.parse(e.timestamp)))
  }
})

test('121 a failed build ends with its reason as the last line', async () => {
  const build = await a.build('api-failing', { steps: run('exit 4') })
  const { status, reason } = await a.finished(build)
  assert.equal(status, 'error')
  assert.deepEqual([reason.message, reason.step], ["failed to run command 'exit 4': exit status 4", '1'])
  assert.equal((await a.log(build)).at(-1).message, `Build failed: ${reason.message}`)
})

test('D7.91 5,000 lines in the last moment of a build are all readable after its end', async () => {
  const build = await a.build('api-lines', { steps: run('seq 1 5000; exit 5') })
  assert.equal((await a.finished(build)).status, 'error')
  const lines = (await a.log(build)).map((e) => e.message)
  assert.deepEqual(lines.filter((l) => l.includes('[stdout]: ')).map((l) => Number(l.replace(/^.*: /, ''))), Array.from({ length: 5000 }, (_, i) => i + 1))
  assert.match(lines.at(-1), /^Build failed: /)
})

test('125 Template.build with the default logger prints lines and resolves to what was built', async () => {
  const lines = [], write = process.stdout.write
  process.stdout.write = (text, ...rest) => { lines.push(String(text)); return write.call(process.stdout, text, ...rest) }
  let info
  try {
    info = await Template.build(busybox().runCmd('echo for the logger'), 'api-logged:v1', { tags: ['stable'], cpuCount: 1, memoryMB: 512, onBuildLogs: defaultBuildLogger() })
  } finally {
    process.stdout.write = write
  }
  assert.match(lines.join('\n'), /for the logger/)
  assert.deepEqual(Object.keys(info).sort(), ['alias', 'buildId', 'name', 'tags', 'templateId'])
  assert.equal(info.name, 'api-logged:v1')
  assert.deepEqual([...info.tags].sort(), ['stable', 'v1'])
  assert.equal(await Template.exists('api-logged'), true)
  assert.deepEqual((await a.call('GET', '/templates/api-logged/tags')).json.map((t) => t.tag), ['stable', 'v1'])
})

test('240 the hash of a COPY is the golden one', async () => {
  fs.writeFileSync(path.join(context, 'a.txt'), 'hello\n', { mode: 0o644 })
  const template = Template({ fileContextPath: context }).fromImage(image('busybox:1')).copy('a.txt', '/app/')
  const [step] = JSON.parse(await Template.toJSON(template)).steps
  assert.equal(step.filesHash, '2b2ef6e85f720df2024cea51e12d1503c60ab9e91e19accf7dd5a1668a932091')
  const build = await a.register('api-hash')
  const link = (await a.call('GET', `/templates/${build.json.templateID}/files/${step.filesHash}`))
  assert.deepEqual([link.status, link.json.present], [201, false])
})

test('148 deleting a template with a running build ends its machine', async () => {
  const build = await a.build('api-deleted', { steps: run('echo begun; sleep 3000') })
  await a.logged(build, '[stdout]: begun')
  assert.equal((await a.remove(build)).status, 204)
  assert.equal((await a.call('GET', `/templates/${build.templateID}/builds/${build.buildID}/status`)).status, 400)
  await eventually(() => processes(build.buildID).length === 0)
})

test('credentials of a registry are kept in memory only', async () => {
  const secret = `s3cr3t-${Date.now()}-${Math.random().toString(16).slice(2)}`
  const registries = [{ type: 'registry', username: `${secret}-user`, password: secret }, { type: 'gcp', serviceAccountJson: JSON.stringify({ private_key: secret }) }]
  for (const fromImageRegistry of registries) {
    // A port that nobody listens on: the build fails where it would have used them.
    const build = await a.build('api-secret', { fromImage: '127.0.0.1:1/vmon/private:1', fromImageRegistry })
    const { status, reason } = await a.finished(build)
    assert.deepEqual([status, reason.step], ['error', 'base'])
  }
  const found = []
  const look = (name) => {
    for (const entry of fs.readdirSync(name, { withFileTypes: true })) {
      const file = path.join(name, entry.name)
      if (entry.isDirectory()) look(file)
      else if (entry.isFile() && fs.statSync(file).size < 64 * 1024 * 1024 && fs.readFileSync(file).includes(secret)) found.push(file)
    }
  }
  look(path.join(dir, 'data'))
  for (const name of fs.readdirSync(dir)) if (name.endsWith('.log') && fs.readFileSync(path.join(dir, name)).includes(secret)) found.push(name)
  assert.deepEqual(found, [])
})
