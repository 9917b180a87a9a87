// Issue item (b): an image of no known distribution: the agent stays PID 1 and packages are skipped; (c) a failing step.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { BuildError, Sandbox, Template } from 'e2b'
import { busybox, busyboxTemplate, dir, eventually, image, logTo, request } from './lib.mjs'

const build = (template, name, lines) =>
  Template.build(template, name, {
    cpuCount: 1, memoryMB: 512,
    onBuildLogs: (e) => { lines?.push(e.message); logTo(name)(e) },
  })

test('82 221 a busybox image becomes a template and a sandbox runs commands', async () => {
  await busyboxTemplate()
  const sandbox = await Sandbox.create('busybox')
  try {
    const result = await sandbox.commands.run('id -un; cat /etc/hostname; cat /proc/1/comm; cat /.e2b')
    const [user, hostname, init, ...e2b] = result.stdout.trim().split('\n')
    assert.equal(user, 'user')
    assert.equal(hostname, 'vibemon')
    assert.match(init, /envd|vmon-agent/)
    assert.deepEqual(e2b.map((l) => l.split('=')[0]), ['ENV_ID', 'TEMPLATE_ID', 'BUILD_ID'])
    await sandbox.files.write('/tmp/a.txt', 'content')
    assert.equal(await sandbox.files.read('/tmp/a.txt'), 'content')
    assert.equal((await sandbox.commands.run('echo $FROM_IMAGE')).stdout, 'yes\n')
  } finally {
    await sandbox.kill()
  }
})

test('COPY, ENV, RUN, WORKDIR and USER steps act as the contract says', async () => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-context-'))
  try {
    fs.mkdirSync(path.join(context, 'src/sub'), { recursive: true })
    fs.writeFileSync(path.join(context, 'src/.env'), 'dot file')
    fs.writeFileSync(path.join(context, 'src/sub/run.sh'), '#!/bin/sh\necho ran\n', { mode: 0o755 })
    fs.symlinkSync('run.sh', path.join(context, 'src/sub/link'))
    const lines = []
    const template = Template({ fileContextPath: context })
      .fromImage(image('busybox:1'))
      .setWorkdir('/app')
      .setEnvs({ A: '1', B: 'two $A words' })
      .copy('src', '/app/data')
      .copy('src/.env', 'relative/', { mode: 0o600 })
      .runCmd('pwd; id -un; echo "$B"; /app/data/sub/link; stat -c "%U:%G %a %n" /app /app/data/sub/run.sh /app/relative/.env')
      .runCmd('id -un', { user: 'root' })
    await build(template, 'steps', lines)
    const out = lines.filter((l) => l.includes('[stdout]:')).map((l) => l.replace(/^.*\[stdout\]: /, ''))
    assert.deepEqual(out, ['/app', 'user', 'two 1 words', 'ran', 'user:user 755 /app',
      'user:user 755 /app/data/sub/run.sh', 'user:user 600 /app/relative/.env', 'root'])
    const sandbox = await Sandbox.create('steps')
    try {
      assert.equal((await sandbox.commands.run('pwd; cat data/.env; readlink data/sub/link')).stdout, '/app\ndot filerun.sh\n')
      assert.equal((await sandbox.commands.run('echo "[$A]"')).stdout, '[]\n', 'ENV steps are for the build only')
    } finally {
      await sandbox.kill()
    }
  } finally {
    fs.rmSync(context, { recursive: true })
  }
})

test('215 an identical rebuild is cached step by step', async () => {
  const make = () => busybox().runCmd('echo one').runCmd('echo two')
  await build(make(), 'cached', [])
  const lines = []
  await build(make(), 'cached', lines)
  assert.ok(lines.some((l) => /^CACHED \[builder 1\/2\] RUN echo one/.test(l)), lines.join('\n'))
  assert.ok(lines.some((l) => /^CACHED \[builder 2\/2\] RUN echo two/.test(l)))
})

test('116 126 a failing step rejects with BuildError that points at the call', async () => {
  const template = busybox().runCmd('exit 3')
  await assert.rejects(build(template, 'failing'), (error) => {
    assert.ok(error instanceof BuildError, String(error))
    assert.match(error.message, /failed to run command 'exit 3': exit status 3/)
    assert.match(error.stack, /build_busybox\.test\.mjs/)
    return true
  })
  const { json } = await request('GET', '/templates')
  const failing = json.find((t) => t.aliases.includes('failing'))
  assert.equal(failing.buildStatus, 'error')
})

test('117 an unknown image is an error of the base step that names it', async () => {
  await assert.rejects(build(Template().fromImage(image('nothing:here')), 'no-image'), (error) => {
    assert.ok(error instanceof BuildError)
    assert.match(error.message, /nothing/)
    assert.match(error.message, /not found/)
    return true
  })
})

test('a registry that is not reachable is one clear line', async () => {
  await assert.rejects(build(Template().fromImage('127.0.0.1:1/vmon/x:1'), 'no-registry'), (error) => {
    assert.ok(error instanceof BuildError)
    assert.match(error.message, /127\.0\.0\.1:1/)
    assert.doesNotMatch(error.message, /\n/)
    return true
  })
})

test('a start command that fails ends the build', async () => {
  await assert.rejects(build(busybox().setStartCmd('exit 7', 'false'), 'bad-start'), (error) => {
    assert.match(error.message, /^.*start command failed: .*exit status 7/)
    return true
  })
})

test('a VM that is killed under a step ends the build at once, with the reason', async () => {
  const lines = []
  const building = build(busybox().runCmd('echo victim started; sleep 3000'), 'killed-vm', lines).catch((e) => e)
  await eventually(() => lines.some((l) => l.includes('[stdout]: victim started')), 300)
  const { json } = await request('GET', '/templates')
  const { templateID } = json.find((t) => t.aliases.includes('killed-vm'))
  const { builds } = (await request('GET', `/templates/${templateID}`)).json
  const qemu = fs.readdirSync('/proc').find((p) => {
    try {
      const cmdline = /^\d+$/.test(p) && fs.readFileSync(`/proc/${p}/cmdline`, 'latin1')
      return cmdline && /qemu-system/.test(cmdline.split('\0')[0]) && cmdline.includes(`\0b-${builds[0].buildID}\0`)
    } catch { return false }
  })
  process.kill(Number(qemu), 'SIGKILL')
  const error = await building
  assert.ok(error instanceof BuildError, String(error))
  assert.match(error.message, /was killed from outside/)
})

test('nothing of a finished or failed build is left running or mounted', async () => {
  const scratch = fs.readdirSync(path.join(dir, 'data/builds')).filter((n) => !/^[0-9a-f-]{36}$/.test(n))
  assert.deepEqual(scratch, [])
})
