// Pausing without the memory and booting from the disk (sandbox-api 5.1, 9, 11: autoPauseMemory and memory false), with the unmodified SDK.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { test, before } from 'node:test'
import { Sandbox } from 'e2b'
import { busybox, dir, eventually, request, serve, template, traces } from './lib.mjs'

const run = async (sandbox, cmd) => (await sandbox.commands.run(cmd)).stdout.trim()
const saved = (id) => path.join(dir, 'data/sandboxes', id, 'paused')
const bootOf = (sandbox) => run(sandbox, 'cat /proc/sys/kernel/random/boot_id')

before(() => template('counting', () => busybox().setStartCmd(
  'i=0; while true; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.1; done', '[ -e /tmp/count ]')))

const create = (options = {}) => Sandbox.create('counting', { timeoutMs: 600_000, envs: { GREETING: 'hello' }, ...options })
// The memory of a guest's page cache only: nothing has asked for it to be written.
const leave = (sandbox) => run(sandbox, `head -c 300000 /dev/urandom > kept; sha256sum < kept > sum; mkdir -p /dev/shm; echo gone > /dev/shm/gone
  rm /tmp/count; sleep 1000 > /dev/null 2>&1 & true`)

async function assertBooted(sandbox, before) {
  assert.notEqual(await bootOf(sandbox), before)
  assert.equal(await run(sandbox, 'sha256sum < kept | cmp - sum && echo same'), 'same')
  assert.equal(await run(sandbox, 'ls /dev/shm; ps | grep -c "[s]leep 1000" || true'), '0')
  assert.equal(await run(sandbox, 'id -un; pwd; echo $GREETING $E2B_SANDBOX_ID'), `user\n/home/user\nhello ${sandbox.sandboxId}`)
  const skew = Math.abs(Number(await run(sandbox, 'date +%s')) - Date.now() / 1000)
  assert.ok(skew < 2, `clock is off by ${skew} s`)
  await run(sandbox, '[ -e /tmp/count ]') // the start command's, before the answer
}

test('S64: without its memory a sandbox keeps its files, and its template\'s service is started again', async () => {
  const idle = traces()
  const sandbox = await create({ secure: true, network: { denyOut: ['192.0.2.0/24'] } })
  const id = sandbox.sandboxId
  const first = await bootOf(sandbox)
  await leave(sandbox)
  assert.equal(await sandbox.pause({ keepMemory: false }), true)
  assert.deepEqual(traces(), idle, 'no process, no mount is left')
  assert.deepEqual(fs.readdirSync(saved(id)), ['paused.json'])
  assert.equal((await Sandbox.getInfo(id)).state, 'paused')
  assert.equal(await Sandbox.pause(id, { keepMemory: false }), false, 'paused already')
  const again = await Sandbox.connect(id, { timeoutMs: 600_000 })
  await assertBooted(again, first)
  assert.deepEqual((await request('GET', `/sandboxes/${id}`)).json.network.denyOut, ['192.0.2.0/24'])

  // From here on like any other: paused with its memory, forked, and a template itself.
  const second = await bootOf(again)
  await run(again, 'mkdir -p /dev/shm; echo in-memory > /dev/shm/kept; sleep 1000 > /dev/null 2>&1 & echo $! > sleeper')
  const goesOn = 'cat /dev/shm/kept && kill -0 $(cat sleeper) && cat /proc/sys/kernel/random/boot_id'
  assert.equal(await sandbox.pause(), true)
  const third = await Sandbox.connect(id, { timeoutMs: 600_000 })
  assert.equal(await run(third, goesOn), `in-memory\n${second}`)
  const [fork] = await third.fork()
  assert.equal(await run(fork, goesOn), `in-memory\n${second}`)
  assert.equal(await fork.pause(), true)
  assert.equal(await run(await Sandbox.connect(fork.sandboxId), goesOn), `in-memory\n${second}`)
  await fork.kill()
  const { snapshotId } = await third.createSnapshot()
  await third.kill()
  const copy = await Sandbox.create(snapshotId, { timeoutMs: 600_000 })
  assert.equal(await run(copy, goesOn), `in-memory\n${second}`)
  assert.equal(await run(copy, 'sha256sum < kept | cmp - sum && echo same'), 'same')
  await copy.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
})

test('S71: a sandbox that was paused with its memory is booted on request, with all that it had written', async () => {
  const sandbox = await create()
  const first = await bootOf(sandbox)
  await leave(sandbox)
  await sandbox.pause()
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000, onResume: 'reboot' })
  await assertBooted(again, first)
  const second = await bootOf(again)
  assert.equal(await bootOf(await Sandbox.connect(sandbox.sandboxId, { onResume: 'reboot' })), second, 'what runs is left alone')
  await again.kill()
})

test('S34: autoPauseMemory: false pauses the disk alone at the end of its time', async () => {
  const sandbox = await create({ lifecycle: { onTimeout: { action: 'pause', keepMemory: false } } })
  const first = await bootOf(sandbox)
  await leave(sandbox)
  await sandbox.setTimeout(0)
  await eventually(() => fs.existsSync(saved(sandbox.sandboxId)))
  await assertBooted(await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 }), first)
  await sandbox.kill()
})

test('a server that dies, and memory that is damaged, cost nothing that was written', async () => {
  const sandbox = await create()
  const id = sandbox.sandboxId
  const first = await bootOf(sandbox)
  await leave(sandbox)
  await sandbox.pause({ keepMemory: false })
  const lost = request('POST', `/v2/sandboxes/${id}/connect`, { body: { timeout: 600 } }).catch((e) => e)
  await eventually(() => fs.existsSync(path.join(dir, 'data/sandboxes', id, 'shim.sock'))) // it is booting
  serve('kill')
  await lost
  serve('start')
  assert.equal((await request('GET', `/sandboxes/${id}`)).json.state, 'paused')
  const again = await Sandbox.connect(id, { timeoutMs: 600_000 })
  await assertBooted(again, first)

  const second = await bootOf(again)
  await leave(again)
  await run(again, 'sync')
  await again.pause()
  fs.truncateSync(path.join(saved(id), 'memory-delta'), 4096)
  assert.equal((await request('POST', `/v2/sandboxes/${id}/connect`, { body: { timeout: 600 } })).status, 500)
  const third = await Sandbox.connect(id, { timeoutMs: 600_000, onResume: 'reboot' })
  assert.notEqual(await bootOf(third), second)
  assert.equal(await run(third, 'sha256sum < kept | cmp - sum && echo same'), 'same')
  await third.kill()
})
