// Issue item 12 and (e): the server may be killed at any time.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test, before } from 'node:test'
import { Sandbox, Template } from 'e2b'
import { busybox, busyboxTemplate, dir, eventually, links, request, serve, traces } from './lib.mjs'

const data = path.join(dir, 'data')

before(busyboxTemplate)

test('sandboxes outlive a killed server and answer again', async () => {
  const idle = traces()
  assert.deepEqual(links(data), [])
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 600_000, metadata: { kept: 'yes' } })
  assert.ok(traces().processes.length > idle.processes.length)
  assert.equal(links(data).length, 1)
  await sandbox.commands.run('echo kept > /tmp/kept')
  serve('kill')
  serve('start')
  assert.equal((await sandbox.commands.run('cat /tmp/kept')).stdout, 'kept\n')
  const info = await sandbox.getInfo()
  assert.equal(info.metadata.kept, 'yes')
  assert.equal(await sandbox.kill(), true)
  await eventually(() => JSON.stringify(traces()) === JSON.stringify(idle) && links(data).length === 0)
})

test('a sandbox that ended while the server was down is forgotten', async () => {
  const sandbox = await Sandbox.create('busybox', { timeoutMs: 4_000 })
  assert.ok(traces().processes.length > 0)
  serve('kill')
  await eventually(() => traces().processes.length === 0)
  serve('start')
  assert.equal((await request('GET', `/sandboxes/${sandbox.sandboxId}`)).status, 404)
  assert.equal(fs.existsSync(path.join(dir, 'data/sandboxes', sandbox.sandboxId)), false)
})

test('a build that was cut off becomes an error with a reason and leaves nothing', async () => {
  const lines = []
  const building = Template.build(busybox().runCmd('echo started; sleep 600'), 'cut-off', {
    cpuCount: 1, memoryMB: 512, onBuildLogs: (e) => lines.push(e.message),
  }).catch((e) => e)
  await eventually(() => lines.some((l) => l.includes('[stdout]: started')), 300)
  serve('kill')
  serve('start')
  const error = await building
  assert.ok(error instanceof Error)
  const { json } = await request('GET', '/templates')
  assert.equal(json.find((t) => t.aliases.includes('cut-off')).buildStatus, 'error')
  const details = await request('GET', `/templates/${json.find((t) => t.aliases.includes('cut-off')).templateID}`)
  const status = await request('GET', `/templates/${details.json.templateID}/builds/${details.json.builds[0].buildID}/status`)
  assert.equal(status.json.status, 'error')
  assert.ok(status.json.reason.message.length > 0)
  await eventually(() => traces().processes.length === 0 && traces().mounts.length === 0)
  assert.deepEqual(fs.readdirSync(path.join(dir, 'data/builds')).filter((n) => !/^[0-9a-f-]{36}$/.test(n)), [])
})
