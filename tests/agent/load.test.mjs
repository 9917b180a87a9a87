// What a busy agent costs. VMON_SOAK=1 streams 5 GiB each way; otherwise 512 MiB.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import { Readable } from 'node:stream'
import { test } from 'node:test'
import { PORT, children, descriptors, ownAgent, residentKib, until } from './lib.mjs'

const SIZE = (process.env.VMON_SOAK ? 5 * 1024 : 512) * 1048576
const MEMORY_KIB = 16384
const work = path.join(process.env.AGENT_WORK, 'load')
fs.mkdirSync(work, { recursive: true, mode: 0o777 })

// The most that `pid` holds while `act` runs.
async function most(pid, act) {
  let kib = 0
  const timer = setInterval(() => { kib = Math.max(kib, residentKib(pid)) }, 20)
  try { await act() } finally { clearInterval(timer) }
  return kib
}

test('an idle agent is small', async (t) => {
  const a = await ownAgent()
  const kib = residentKib(a.pid)
  t.diagnostic(`${kib} KiB resident`)
  assert.ok(kib <= 4096, `${kib} KiB`)
})

test('a large upload and a large download, at constant memory', { timeout: 600000 }, async (t) => {
  const a = await ownAgent()
  const file = work + '/large', piece = Buffer.alloc(1 << 20, 'abcdefgh')
  const up = await most(a.pid, async () => {
    const pieces = (function* () { for (let i = 0; i < SIZE / piece.length; i++) yield piece })()
    const r = await a.request('POST', '/files?path=' + file, { headers: { 'content-type': 'application/octet-stream' }, body: Readable.from(pieces) })
    assert.equal(r.status, 200)
  })
  assert.equal(fs.statSync(file).size, SIZE)
  for (const headers of [{}, process.env.VMON_SOAK ? null : { 'accept-encoding': 'identity;q=0, gzip' }].filter(Boolean)) {
    let bytes = 0
    const down = await most(a.pid, () => new Promise((resolve, reject) => {
      http.get({ host: a.host, port: PORT, path: '/files?path=' + file, headers }, (r) => {
        r.on('data', (d) => { bytes += d.length })
        r.on('end', resolve)
        r.on('error', reject)
      }).on('error', reject)
    }))
    assert.ok(headers['accept-encoding'] ? bytes > 0 && bytes < SIZE / 10 : bytes === SIZE, `${bytes}`)
    t.diagnostic(`${up} KiB resident at most while uploading, ${down} while downloading`)
    assert.ok(down <= MEMORY_KIB, `${down} KiB`)
  }
  assert.ok(up <= MEMORY_KIB, `${up} KiB`)
  fs.rmSync(file)
})

test('200 streams of output at once, whole and at bounded memory', { timeout: 300000 }, async (t) => {
  const a = await ownAgent()
  const each = 1 << 20
  const kib = await most(a.pid, async () => {
    const all = await Promise.all(Array.from({ length: 200 }, (_, i) => a.start({ process: { cmd: 'sh', args: ['-c', `head -c ${each} /dev/zero | tr '\\0' ${String.fromCharCode(97 + i % 26)}`] }, stdin: false })))
    all.forEach((r, i) => assert.ok(r.stdout === String.fromCharCode(97 + i % 26).repeat(each), `stream ${i}: ${r.stdout.length} bytes`))
  })
  t.diagnostic(`${kib} KiB resident at most`)
  assert.ok(kib <= 131072, `${kib} KiB`)
})

test('10000 processes leave nothing', { timeout: 600000 }, async (t) => {
  const a = await ownAgent()
  const many = async (n) => {
    for (let i = 0; i < n; i += 20) {
      const ends = await Promise.all(Array.from({ length: 20 }, () => a.start({ process: { cmd: 'true' }, stdin: false })))
      for (const r of ends) assert.equal(r.end?.status, 'exit status 0')
    }
  }
  await many(1000)
  const [fds, kib] = [descriptors(a.pid), residentKib(a.pid)]
  await many(9000)
  await until(() => descriptors(a.pid) <= fds)
  assert.deepEqual(children(a.pid), [])
  t.diagnostic(`${residentKib(a.pid) - kib} KiB more after 9000 more processes`)
  assert.ok(residentKib(a.pid) - kib < 2048, `${residentKib(a.pid) - kib} KiB more`)
  assert.deepEqual(await a.list(), [])
})
