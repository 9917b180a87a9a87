// An image without a shell, without os-release and without /etc: `FROM scratch` and one static binary (known-failures D6.74).
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { BuildError, Sandbox, Template } from 'e2b'
import { image, logTo } from './lib.mjs'

const scratch = () => Template().fromImage(image('scratch:1'))
const build = (template, name, lines) =>
  Template.build(template, name, {
    cpuCount: 1, memoryMB: 512,
    onBuildLogs: (e) => { lines?.push(`${e.level} ${e.message}`); logTo(name)(e) },
  })

test('D6.74 an image of one static binary becomes a template; its sandbox has files', async () => {
  const lines = []
  await build(scratch(), 'scratch', lines)
  assert.ok(lines.some((l) => /^warn .*no shell/.test(l)), lines.join('\n'))
  const sandbox = await Sandbox.create('scratch')
  try {
    assert.match(await sandbox.files.read('/.e2b', { user: 'root' }), /^ENV_ID=.*\nTEMPLATE_ID=.*\nBUILD_ID=.*\n$/)
    await sandbox.files.write('notes/a.txt', 'content')
    assert.equal(await sandbox.files.read('/home/user/notes/a.txt'), 'content')
    const names = (await sandbox.files.list('/', { user: 'root' })).map((f) => f.name)
    for (const name of ['program', 'code', 'tmp']) assert.ok(names.includes(name), names.join(' '))
    await assert.rejects(sandbox.commands.run('true'), /exit status 127|No such file/)
  } finally {
    await sandbox.kill()
  }
})

test('D6.74 what needs a shell says that there is none', async () => {
  const failing = [
    [scratch().runCmd('true'), 'scratch-run', /RUN needs a shell.*no \/bin\/sh/],
    [scratch().setWorkdir('/app'), 'scratch-workdir', /WORKDIR needs a shell/],
    [scratch().setStartCmd('/program', 'true'), 'scratch-start', /the start command needs a shell/],
  ]
  for (const [template, name, message] of failing) {
    await assert.rejects(build(template, name), (error) => {
      assert.ok(error instanceof BuildError, String(error))
      assert.match(error.message, message)
      return true
    })
  }
})
