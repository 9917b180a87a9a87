// Older npm packages of E2B and the newest, with whole sandboxes, as they come: a domain, TLS and a wildcard in the DNS (sandbox-api 20; issue 6, demand 6).
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { here, image } from './lib.mjs'
import { startServer } from './server.mjs'

const guard = { timeout: 300_000 }
const packages = Object.keys(JSON.parse(fs.readFileSync(path.join(here, 'package.json'), 'utf8')).dependencies).filter((name) => /^e2b(-\d|$)/.test(name))
let root, server, certificate

before(async () => {
  root = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-packages-'))
  certificate = path.join(root, 'cert.pem')
  const key = path.join(root, 'key.pem')
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj', '/CN=vmon.test',
    '-addext', 'subjectAltName=DNS:vmon.test,DNS:*.vmon.test', '-keyout', key, '-out', certificate], { stdio: 'ignore' })
  fs.chmodSync(root, 0o711)
  server = await startServer(root, 'tls', { options: ['--tls-cert', certificate, '--tls-key', key, '--domain', 'vmon.test'] })
  assert.equal(await client('e2b', { IMAGE: image('busybox:1') }), 'done\n')
}, guard)
after(async () => {
  await server.stop()
  fs.rmSync(root, { recursive: true, force: true })
})

function client(name, more = {}) {
  const env = { PATH: process.env.PATH, HOME: root, E2B_API_KEY: server.key, E2B_DOMAIN: `vmon.test:${server.port}`, NODE_EXTRA_CA_CERTS: certificate, ...more }
  const child = spawn(process.execPath, ['--require', path.join(here, 'vmon-test-domain.cjs'), path.join(here, 'package-client.cjs'), name], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let out = ''
  child.stdout.on('data', (d) => { out += d })
  child.stderr.on('data', (d) => { out += d })
  return new Promise((resolve) => child.on('close', () => resolve(out)))
}

test('there are older packages to test', () => assert.ok(packages.length >= 7 && packages.includes('e2b-1.0.1') && packages.includes('e2b')))

for (const name of packages) test(`${name}: create, run, files, terminal, ports, list, connect, pause, snapshot, kill`, guard, async () => {
  assert.equal(await client(name), 'done\n')
})
