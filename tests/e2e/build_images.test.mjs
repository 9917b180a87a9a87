// Where a base comes from: tags that move (known-failures D3.37, D3.40) and registries that ask for credentials (template-api 5.2).
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { apiKey, dir, here, image, port } from './lib.mjs'
import { api, run, startServer } from './server.mjs'

const root = path.join(dir, 'images')
const guard = { timeout: 300_000 }
const a = api({ port, key: apiKey })

before(() => { fs.rmSync(root, { recursive: true, force: true }) })
after(() => { fs.rmSync(root, { recursive: true, force: true }) })

// Pushes the busybox image with a file /marker as vmon/NAME.
function push(name, marker) {
  const tree = path.join(root, 'tree')
  fs.mkdirSync(root, { recursive: true })
  execFileSync('cp', ['-a', path.join(dir, 'busybox'), tree])
  fs.writeFileSync(path.join(tree, 'marker'), marker)
  const registry = process.env.VMON_E2E_REGISTRY.split(':')[1]
  execFileSync('bash', ['-c', '. "$1/scripts/lib.sh"; push_tree "$2" "vmon/$3" "$4"', 'bash', path.resolve(here, '../..'), tree, name, registry], { stdio: ['ignore', 'ignore', 'inherit'] })
  fs.rmSync(tree, { recursive: true })
}

async function ready(server, name, plan) {
  const build = await server.build(name, plan)
  const { status, reason } = await server.finished(build)
  assert.equal(status, 'ready', JSON.stringify(reason))
  const messages = (await server.log(build)).map((e) => e.message)
  return { ...build, messages, out: messages.filter((m) => m.includes('[stdout]: ')).map((m) => m.replace(/^.*\[stdout\]: /, '')) }
}

const marker = async (sandbox) => (await sandbox.commands.run('cat /marker')).stdout

test('219 D3.37 D3.40 a moved tag makes a new base; templates and sandboxes of the old one keep it', guard, async () => {
  const one = `one ${Date.now()}`, two = `two ${Date.now()}`
  const plan = { fromImage: image('moved:1'), steps: run('cat /marker') }
  push('moved:1', one)
  const first = await ready(a, 'moved', plan)
  assert.deepEqual(first.out, [one])
  await ready(a, 'moved-old', plan)
  const old = await Sandbox.create('moved')
  try {
    push('moved:1', two)
    const second = await ready(a, 'moved', plan)
    assert.deepEqual(second.out, [two])
    assert.ok(!second.messages.some((m) => m.startsWith('CACHED')), second.messages.join('\n'))
    assert.ok((await ready(a, 'moved', plan)).messages.some((m) => m.startsWith('CACHED [base] FROM')))
    const fresh = await Sandbox.create('moved')
    try {
      assert.equal(await marker(fresh), two, 'the tag moved at once')
    } finally {
      await fresh.kill()
    }
    assert.equal(await marker(old), one)
  } finally {
    await old.kill()
  }
  const still = await Sandbox.create('moved-old')
  try {
    assert.equal(await marker(still), one, 'a template is its digest, not its tag')
  } finally {
    await still.kill()
  }
  assert.deepEqual((await ready(a, 'moved-child', { fromTemplate: 'moved-old', force: true, steps: run('cat /marker') })).out, [one])
})

// The registry behind HTTP Basic authentication: what it was asked, and by whom.
async function guardedRegistry(pair) {
  const [hostname, behind] = process.env.VMON_E2E_REGISTRY.split(':')
  const asked = []
  const server = http.createServer((req, res) => {
    const { authorization, ...headers } = req.headers
    asked.push(authorization)
    if (authorization !== `Basic ${Buffer.from(pair).toString('base64')}`) {
      res.writeHead(401, { 'WWW-Authenticate': 'Basic realm="vmon"', 'Content-Type': 'application/json' })
      return res.end(JSON.stringify({ errors: [{ code: 'UNAUTHORIZED', message: 'authentication required' }] }))
    }
    const onward = http.request({ hostname, port: behind, method: req.method, path: req.url, headers }, (answer) => {
      res.writeHead(answer.statusCode, answer.headers)
      answer.pipe(res)
    })
    onward.on('error', () => res.destroy())
    req.pipe(onward)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { name: `127.0.0.1:${server.address().port}`, asked, close: () => { server.closeAllConnections(); server.close() } }
}

// Files below `directory` that hold `text`.
function holding(directory, text) {
  return fs.readdirSync(directory, { recursive: true, withFileTypes: true }).filter((e) => e.isFile()).map((e) => path.join(e.parentPath ?? e.path, e.name))
    .filter((file) => fs.statSync(file).size < 64 << 20 && fs.readFileSync(file).includes(text))
}

test('236 a private image is pulled with its credentials, which are stored nowhere', guard, async () => {
  const password = `s3cr3t-${Date.now()}`, registry = await guardedRegistry(`robot:${password}`)
  const server = await startServer(root, 'private', { options: ['--insecure-registry', registry.name] })
  try {
    const b = api(server), fromImage = `${registry.name}/vmon/busybox:1`
    for (const [name, credentials, why] of [['none', undefined, /access denied to '.*vmon\/busybox:1'/], ['wrong', 'not it', /access denied to '.*vmon\/busybox:1'/]]) {
      const build = await b.build(name, { fromImage, ...(credentials && { fromImageRegistry: { type: 'registry', username: 'robot', password: credentials } }) })
      const { status, reason } = await b.finished(build)
      assert.deepEqual([status, reason.step], ['error', 'base'])
      assert.match(reason.message, why)
      assert.doesNotMatch(reason.message, /\n|not it/)
    }
    const before = registry.asked.length
    const build = await b.build('right', { fromImage, fromImageRegistry: { type: 'registry', username: 'robot', password } })
    const { status, reason } = await b.finished(build)
    assert.equal(status, 'ready', JSON.stringify(reason))
    assert.ok(registry.asked.slice(before).some((h) => h))
    assert.ok(!JSON.stringify(await b.log(build)).includes(password))
    for (const text of [password, Buffer.from(`robot:${password}`).toString('base64')]) assert.deepEqual(holding(path.join(root, 'private'), text), [])
  } finally {
    await server.stop()
    registry.close()
  }
})
