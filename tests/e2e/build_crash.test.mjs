// A power cut at every instant at which something becomes durable: the server is killed at each failpoint that a build
// passes. After the next start the build is ready with artifacts that work, or an error with a reason; a tag never points
// at anything but a ready build; and nothing half-made is left.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { data, isBroken, recorded, restart, startRecording, title } from './failpoints.mjs'
import { busyboxTemplate, eventually, image, request, traces } from './lib.mjs'

const soak = process.env.VMON_SOAK === '1'

// One build through the raw API, because the server may die under any of its requests. Answers null when the
// connection broke.
async function build(name, command) {
  try {
    const created = (await request('POST', '/v3/templates', { body: { name, cpuCount: 1, memoryMB: 512 } })).json
    await request('POST', `/v2/templates/${created.templateID}/builds/${created.buildID}`, {
      body: { fromImage: image('busybox:1'), steps: [{ type: 'RUN', args: [command, 'root'], force: true }] },
    })
    return await eventually(async () => {
      const { json } = await request('GET', `/templates/${created.templateID}/builds/${created.buildID}/status`)
      return ['ready', 'error'].includes(json.status) && json
    }, 300)
  } catch (error) {
    if (isBroken(error)) return null
    throw error
  }
}

async function checkBuilds(templateID) {
  const { builds } = (await request('GET', `/templates/${templateID}`)).json
  const ready = []
  for (const { buildID } of builds) {
    const { json } = await request('GET', `/templates/${templateID}/builds/${buildID}/status`)
    assert.ok(['ready', 'error', 'waiting'].includes(json.status), JSON.stringify(json))
    if (json.status === 'error') assert.ok(json.reason.message.length > 0)
    if (json.status === 'ready') ready.push(buildID)
  }
  for (const { buildID, tag } of (await request('GET', `/templates/${templateID}/tags`)).json) {
    assert.ok(ready.includes(buildID), `tag ${tag} points at ${buildID}, which is not ready`)
  }
  return ready
}

// Every ready build has its artifacts, and nothing else is there.
async function checkFiles(ready) {
  for (const id of ready) assert.ok(fs.existsSync(path.join(data, 'builds', id, 'manifest.json')), `${id} has no artifacts`)
  const names = (name) => fs.readdirSync(path.join(data, name)).filter((n) => !n.startsWith('.'))
  // Housekeeping may just be removing what the cut-off build left.
  await eventually(() => names('builds').every((n) => /^[0-9a-f-]{36}$/.test(n)))
  assert.deepEqual(names('cache/steps').filter((n) => !/^[0-9a-f]{64}$/.test(n)), [])
  assert.deepEqual(names('scratch'), [])
  assert.deepEqual(traces(), { processes: [], mounts: [] })
}

async function answers(reference) {
  const sandbox = await Sandbox.create(reference, { timeoutMs: 60_000 })
  try {
    assert.equal((await sandbox.commands.run('cat /made')).stdout, 'made\n')
  } finally {
    await sandbox.kill()
  }
}

before(busyboxTemplate)
after(() => restart())

test('a power cut at any instant leaves a build ready or failed, and nothing half-made', async (t) => {
  await startRecording()
  const status = await build('crash', 'echo made >/made')
  assert.equal(status.status, 'ready', JSON.stringify(status))
  const points = recorded()
  for (const wanted of ['/cache/steps/', '/builds/', 'device-state', 'manifest.json', 'commit:tag/']) {
    assert.ok(points.some((p) => p.includes(wanted)), `no failpoint at ${wanted}:\n${points.join('\n')}`)
  }
  // The short form: around each whole artifact and the records that make a build visible.
  const chosen = soak ? points : points.filter((p) => /^(rename|renamed):.*\/(steps|builds)\/\*@1|^commit(ted)?:(tag|build)\/.*@1/.test(p))
  const { templateID } = (await request('GET', '/templates')).json.find((x) => x.aliases.includes('crash'))
  for (const point of chosen) {
    await t.test(title(point), async () => {
      await restart({ VMON_FAILPOINT: point })
      const died = await build('crash', 'echo made >/made')
      assert.equal(died, null, `the failpoint was not passed: ${JSON.stringify(died)}`)
      await restart()
      const ready = await checkBuilds(templateID)
      await eventually(() => traces().processes.length === 0)
      await checkFiles(ready)
      await answers('crash')
      await answers(`crash:${ready[0]}`)
    })
  }
})
