// vmon admin against running machines: list, console, kill, and the artifacts of a template that was deleted under a sandbox.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { Sandbox, Template } from 'e2b'
import { admin, busybox, dir, logTo, request } from './lib.mjs'


test('147 the administrator sees, reads and kills sandboxes; a deleted template goes with its last one', async () => {
  await Template.build(busybox(), 'admin', { cpuCount: 1, memoryMB: 512, onBuildLogs: logTo('admin') })
  const sandbox = await Sandbox.create('admin')
  const listed = JSON.parse(admin('list-sandboxes', '--json')).find((s) => s.sandboxID === sandbox.sandboxId)
  assert.equal(listed.team, 'default')
  assert.equal(listed.alias, 'admin')
  const [node] = JSON.parse(admin('list-nodes', '--json'))
  assert.equal(node.status, 'ready')
  assert.ok(node.sandboxes >= 1)
  await sandbox.commands.run('echo said-on-the-console > /dev/console', { user: 'root' })
  assert.match(admin('console', sandbox.sandboxId), /said-on-the-console/)

  const artifacts = path.join(dir, 'data/builds', listed.buildID)
  assert.equal((await request('DELETE', '/templates/admin')).status, 204)
  admin('gc')
  assert.ok(fs.existsSync(artifacts), 'a sandbox runs on them')
  assert.equal((await sandbox.commands.run('echo alive')).stdout, 'alive\n')
  admin('kill-sandbox', sandbox.sandboxId)
  assert.equal(await sandbox.isRunning(), false)
  assert.ok(!JSON.parse(admin('list-sandboxes', '--json')).some((s) => s.sandboxID === sandbox.sandboxId))
  admin('gc')
  assert.ok(!fs.existsSync(artifacts))
})
