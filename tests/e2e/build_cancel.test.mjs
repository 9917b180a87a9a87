// Cancelling and limits (template-api 14.1, 16, 18.10; known failures 86, 89 and 100): what ends a build gives back at once all
// that it held. The last test cancels builds at random instants and counts what is left; VMON_SOAK=1 makes it 200 builds.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { dir, eventually, links, machineProcesses } from './lib.mjs'
import { api, holdings, processes, random, run, settled, startServer, threads } from './server.mjs'

const root = path.join(dir, 'cancel')
let server, a

before(async () => {
  fs.rmSync(root, { recursive: true, force: true })
  server = await startServer(root, 'main', { options: ['--max-builds', '2'] })
  a = api(server)
})
after(async () => {
  await server?.stop()
  fs.rmSync(root, { recursive: true, force: true })
})

const guard = { timeout: 300_000 }
const endless = (word = 'begun') => ({ steps: run(`echo ${word}; sleep 3000`) })
const machines = (...builds) => processes(...builds.map((b) => `b-${b.buildID}`), ...builds.map((b) => `scratch/${b.buildID}`))

// The VM and the scratch directory of each go within seconds.
async function nothingLeft(s, ...builds) {
  await eventually(() => machines(...builds).length === 0, 10)
  await eventually(() => builds.every((b) => !fs.existsSync(path.join(s.data, 'scratch', b.buildID)) && !fs.existsSync(path.join(s.data, 'builds', `${b.buildID}.tmp`))), 10)
}

async function cancelled(build) {
  const { status, reason } = await a.status(build)
  assert.equal(status, 'error')
  assert.deepEqual([reason.message, reason.step], ['build was cancelled', undefined])
  assert.equal((await a.log(build)).at(-1).message, 'Build failed: build was cancelled')
}

test('179 180 181 186 D8.100 overlapping tags cancel, disjoint ones do not; what is beyond --max-builds waits its turn', guard, async () => {
  const one = await a.build('web', endless(), ['v1'])
  const two = await a.build('web', endless(), ['v2'])
  await a.logged(one, '[stdout]: begun')
  await a.logged(two, '[stdout]: begun')
  assert.ok(machines(one).length > 0 && machines(two).length > 0)
  if (process.getuid() === 0) assert.equal(links(server.data).length, 2)
  const third = await a.build('web', endless(), ['v3'])
  const fourth = await a.build('web', {}, ['v1', 'extra'])
  await cancelled(one)
  await nothingLeft(server, one)
  assert.equal((await a.status(two)).status, 'building', 'tags v2 and v1 are disjoint')
  await a.logged(third, '[stdout]: begun') // its turn came when the first was cancelled, before the fourth
  assert.deepEqual(await a.log(fourth), [])
  assert.equal((await a.status(fourth)).status, 'building')
  const fifth = await a.build('web', {}, ['v3', 'v4'])
  await cancelled(third)
  for (const build of [fourth, fifth]) assert.equal((await a.finished(build)).status, 'ready')
  assert.equal((await a.remove(two)).status, 204)
  await nothingLeft(server, one, two, third)
  const gone = await a.call('GET', `/templates/${two.templateID}/builds/${two.buildID}/status`)
  assert.deepEqual([gone.status, gone.json.message], [400, `Build '${two.buildID}' not found`])
})

test('179 a queued build that is cancelled never begins; 95 one whose files vanish meanwhile fails at the step', guard, async () => {
  const running = [await a.build('q1', endless()), await a.build('q2', endless())]
  for (const build of running) await a.logged(build, '[stdout]: begun')
  const queued = await a.build('q3', endless('queued'))
  const waiting = (await a.register('q3')).json // cancels nothing before it is triggered
  assert.equal((await a.status(queued)).status, 'building')
  await a.trigger(waiting, endless('queued'))
  await cancelled(queued)
  assert.deepEqual((await a.log(queued)).map((e) => e.message), ['Build failed: build was cancelled'])

  const vanishing = (await a.register('q4')).json, hash = '5e'.repeat(32), copy = { type: 'COPY', args: ['a', '/b', '', ''], filesHash: hash }
  await a.upload(vanishing, hash, 'an archive')
  assert.equal((await a.trigger(vanishing, { steps: [copy] })).status, 202)
  fs.unlinkSync(path.join(server.data, 'files', 'default', hash))
  for (const build of [...running, waiting]) await a.remove(build)
  const { status, reason } = await a.finished(vanishing)
  assert.deepEqual([status, reason.step], ['error', '1'])
  assert.match(reason.message, /^COPY a: the files \(hash 5e5e.* were not uploaded; run the build again/)
  await nothingLeft(server, ...running, waiting, vanishing)
})

test('182 a build that was never triggered is superseded by the next registration', guard, async () => {
  const first = (await a.register('twice')).json, second = (await a.register('twice')).json
  const { status, reason } = await a.status(first)
  assert.deepEqual([status, reason.message, reason.step], ['error', 'The build was canceled because it was superseded by a newer one.', undefined])
  assert.equal((await a.status(second)).status, 'waiting')
  await a.remove(second)
})

test('183 184 185 the limit of the team: 429 without Retry-After, not for a rebuild, and free again at once', guard, async () => {
  server.admin('set-limits', 'default', '--max-concurrent-builds', '1')
  try {
    const build = await a.build('limited', endless())
    await a.logged(build, '[stdout]: begun')
    const over = await a.register('more')
    assert.equal(over.status, 429)
    assert.equal(over.headers['retry-after'], undefined)
    assert.match(over.json.message, /limit.*1|1.*limit/i)
    const again = await a.register('limited')
    assert.equal(again.status, 202, 'the build that it will supersede does not count')
    await a.trigger(again.json, { steps: run('exit 3') })
    assert.equal((await a.finished(again.json)).status, 'error')
    const after = await a.register('more')
    assert.equal(after.status, 202)
    await a.remove(after.json)
    assert.equal((await a.register('more')).status, 202)
  } finally {
    server.admin('set-limits', 'default', '--max-concurrent-builds', '20')
  }
})

test('D7.89 the client of a build is gone: a rebuild within 100 ms takes its place', guard, async () => {
  const lost = await a.build('lost', endless())
  await a.logged(lost, '[stdout]: begun')
  const begin = performance.now()
  const again = await a.build('lost', {})
  assert.ok(performance.now() - begin < 5000, 'the cancelled build is not waited for')
  await cancelled(lost)
  assert.equal((await a.finished(again)).status, 'ready')
  await nothingLeft(server, lost)
})

test('187 D7.86 a build beyond the time limit ends with the exact message, and its slot serves the next', guard, async () => {
  const short = await startServer(root, 'short', { options: ['--max-builds', '1', '--build-seconds', '45'] })
  try {
    const b = api(short)
    const late = await b.build('late', endless()), next = await b.build('next', {})
    const { status, reason } = await b.finished(late)
    assert.deepEqual([status, reason.message, reason.step], ['error', 'build status polling timed out. Maximum build time is 45s.', undefined])
    assert.equal((await b.log(late)).at(-1).message, `Build failed: ${reason.message}`)
    await nothingLeft(short, late)
    assert.equal((await b.finished(next)).status, 'ready', 'its time begins with its turn')
  } finally {
    await short.stop()
  }
})

test('D7.86 builds cancelled at random instants leave no process, descriptor, file, mount, namespace or rule', { timeout: 7_200_000 }, async (t) => {
  const seed = Number(process.env.VMON_SEED || 1), builds = process.env.VMON_SOAK ? 200 : 20, next = random(seed)
  const plans = [
    (i) => ({ steps: run(`echo ${i}; dd if=/dev/zero of=/home/user/fill bs=1M count=8`), startCmd: 'sleep 3000', readyCmd: 'true' }),
    (i) => ({ startCmd: `echo ${i}; sleep 3000`, readyCmd: 'true' }),
    (i) => ({ force: true, steps: run(`echo ${i}`) }),
  ]
  const ranges = [] // of the instants: how long each kind takes when nothing ends it
  for (const plan of plans) {
    const begin = performance.now(), warm = await a.build('leak-warm', plan(0))
    assert.equal((await a.finished(warm)).status, 'ready')
    ranges.push(performance.now() - begin)
    await a.remove(warm)
  }
  server.admin('gc')
  await eventually(() => machineProcesses(server.data).length === 0, 30)
  const before = holdings(server), tasks = threads(server), outcomes = {}
  let previous
  for (let i = 1; i <= builds; i++) {
    const deleted = next() < 0.5, kind = Math.floor(next() * plans.length), wait = next() * ranges[kind]
    const build = await a.build('leak', plans[kind](i)) // cancels the previous one unless that was deleted or ended
    if (previous) {
      const { status, reason } = await a.status(previous)
      const outcome = status === 'ready' ? 'ready before' : reason.message
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1
    }
    await new Promise((resolve) => setTimeout(resolve, wait)) // the random instant itself
    previous = build
    if (!deleted && i < builds) continue
    assert.equal((await a.remove(build)).status, 204)
    outcomes.deleted = (outcomes.deleted ?? 0) + 1
    previous = undefined
  }
  const left = await settled(server, before)
  t.diagnostic(JSON.stringify({ seed, builds, ranges_ms: ranges.map(Math.round), outcomes, before, left, threads: [tasks, threads(server)] }))
  assert.ok(left.kilobytes <= before.kilobytes + 1024, `disk: ${before.kilobytes} kB before, ${left.kilobytes} kB now`)
  assert.ok(threads(server) <= tasks + 1)
  for (const outcome of Object.keys(outcomes)) assert.match(outcome, /^(build was cancelled|ready before|deleted)$/)
  assert.equal((await a.finished(await a.build('leak', {}))).status, 'ready', 'and the server builds on')
})
