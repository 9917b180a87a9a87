// Servers of a test's own, and builds driven without the SDK: at instants and in orders in which it would not.
import assert from 'node:assert/strict'
import { execFileSync, spawn } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import net from 'node:net'
import path from 'node:path'
import { eventually, image, links, machineProcesses } from './lib.mjs'

const freePort = () => new Promise((resolve) => {
  const s = net.createServer().listen(0, '127.0.0.1', () => { const { port } = s.address(); s.close(() => resolve(port)) })
})

// A `vmon serve` with its data in root/name/data unless told otherwise, listening when this resolves. `stop` ends it.
export async function startServer(root, name, { kit = process.env.VMON_E2E_KIT, data = path.join(root, name, 'data'), program = process.env.VMON, uid, options = [] } = {}) {
  fs.mkdirSync(path.join(root, name), { recursive: true })
  const port = await freePort(), cluster = await freePort()
  const log = path.join(root, name, 'log'), fd = fs.openSync(log, 'a'), from = fs.fstatSync(fd).size
  const child = spawn(program, ['serve', '--data-dir', data, '--kit-dir', kit, '--listen', `127.0.0.1:${port}`,
    '--cluster-listen', `127.0.0.1:${cluster}`, '--insecure-registry', process.env.VMON_E2E_REGISTRY, ...options], { stdio: ['ignore', fd, fd], uid, gid: uid })
  const ended = new Promise((resolve) => child.on('exit', resolve))
  fs.closeSync(fd)
  const server = {
    data, port, pid: child.pid,
    stop: async () => { child.kill(); await ended },
    log: () => fs.readFileSync(log, 'utf8'),
    admin: (...words) => execFileSync(process.env.VMON, ['admin', '--data-dir', data, '--cluster-url', `http://127.0.0.1:${cluster}`, ...words], { encoding: 'utf8' }),
  }
  try {
    await eventually(() => {
      if (child.exitCode !== null) throw new Error(server.log())
      return server.log().slice(from).includes('vmon: listening')
    })
  } catch (error) {
    await server.stop()
    throw error
  }
  server.key = fs.readFileSync(path.join(data, 'default-key'), 'utf8').trim()
  server.connection = { apiKey: server.key, apiUrl: `http://127.0.0.1:${port}` }
  return server
}

function call(server, key, method, target, body) {
  return new Promise((resolve, reject) => {
    const text = body === undefined ? undefined : JSON.stringify(body)
    const headers = { 'X-API-Key': key, ...(text && { 'Content-Type': 'application/json' }) }
    const req = http.request({ host: '127.0.0.1', port: server.port, method, path: target, headers, agent: false }, (res) => {
      const chunks = []
      res.on('data', (c) => chunks.push(c))
      res.on('end', () => {
        const got = Buffer.concat(chunks).toString()
        resolve({ status: res.statusCode, headers: res.headers, json: got ? JSON.parse(got) : undefined })
      })
    })
    req.on('error', reject)
    req.end(text)
  })
}

export const run = (...lines) => lines.map((line) => ({ type: 'RUN', args: [line] }))

// The template API of `server` (startServer()'s, or any {port, key}) as plain calls.
export function api(server, key = server.key) {
  const self = {
    call: (method, target, body) => call(server, key, method, target, body),
    register: (name, tags, rest) => self.call('POST', '/v3/templates', { name, ...(tags && { tags }), cpuCount: 1, memoryMB: 512, ...rest }),
    trigger: ({ templateID, buildID }, plan) => self.call('POST', `/v2/templates/${templateID}/builds/${buildID}`,
      { ...(!plan?.fromTemplate && { fromImage: image('busybox:1') }), steps: [], ...plan }),
    // A build context for COPY steps.
    async upload({ templateID }, hash, bytes) {
      const link = new URL((await self.call('GET', `/templates/${templateID}/files/${hash}`)).json.url)
      const put = await fetch(`http://127.0.0.1:${server.port}${link.pathname}${link.search}`, { method: 'PUT', body: bytes })
      if (put.status !== 200) throw new Error(`upload ${hash}: ${put.status} ${await put.text()}`)
    },
    // Registered and triggered: {templateID, buildID}.
    async build(name, plan, tags) {
      const created = await self.register(name, tags)
      if (created.status !== 202) throw new Error(`register ${name}: ${created.status} ${JSON.stringify(created.json)}`)
      const started = await self.trigger(created.json, plan)
      if (started.status !== 202) throw new Error(`trigger ${name}: ${started.status} ${JSON.stringify(started.json)}`)
      return created.json
    },
    status: async ({ templateID, buildID }) => (await self.call('GET', `/templates/${templateID}/builds/${buildID}/status`)).json,
    // All entries of the log so far, with those of debug level.
    async log(build) {
      const entries = []
      for (;;) {
        const page = (await self.call('GET', `/templates/${build.templateID}/builds/${build.buildID}/status?logsOffset=${entries.length}`)).json.logEntries
        entries.push(...page)
        if (page.length < 100) return entries
      }
    },
    logged: (build, text, seconds = 240) => eventually(async () => {
      const entries = await self.log(build), entry = entries.find((e) => e.message.includes(text))
      if (!entry && entries.some((e) => /^Build (failed|finished)/.test(e.message))) throw new Error(`no '${text}' in: ${entries.map((e) => e.message).join('\n')}`)
      return entry
    }, seconds),
    finished: (build, seconds = 240) => eventually(async () => {
      const s = await self.status(build)
      return (s.status === 'ready' || s.status === 'error') && s
    }, seconds),
    remove: (build) => self.call('DELETE', `/templates/${build.templateID}`),
  }
  return self
}

// Processes that have one of `texts` in their command line: [pid, command line].
export function processes(...texts) {
  return fs.readdirSync('/proc').filter((p) => /^\d+$/.test(p)).map((p) => {
    try { return [Number(p), fs.readFileSync(`/proc/${p}/cmdline`, 'latin1')] } catch { return [0, ''] }
  }).filter(([, line]) => texts.some((t) => line.includes(t)))
}

// mulberry32: the same numbers for the same VMON_SEED
export function random(seed) {
  return () => {
    let t = seed += 0x6d2b79f5
    t = Math.imul(t ^ t >>> 15, t | 1)
    t ^= t + Math.imul(t ^ t >>> 7, t | 61)
    return ((t ^ t >>> 14) >>> 0) / 2 ** 32
  }
}

// What a server holds, by kind. Records and logs in vmon.db grow by design and are left out.
export function holdings(s) {
  const count = (what) => fs.readdirSync(`/proc/${s.pid}/${what}`).length
  const files = fs.readdirSync(s.data, { recursive: true }).filter((f) => !/^vmon\.db/.test(f) && !f.startsWith('cache/steps/') && !/^history(\/|$)/.test(f))
  const ours = [s.pid, ...machineProcesses(s.data)]
  const namespace = (pid) => { try { return fs.readlinkSync(`/proc/${pid}/ns/net`) } catch { return '' } }
  return {
    processes: ours.length,
    descriptors: count('fd'),
    files: files.length,
    kilobytes: Number(execFileSync('du', ['-sk', '--exclude=vmon.db*', '--exclude=steps', '--exclude=history', s.data], { encoding: 'utf8' }).split('\t')[0]),
    mounts: fs.readFileSync(`/proc/${s.pid}/mountinfo`, 'utf8').split('\n').length,
    namespaces: new Set(ours.map(namespace).filter(Boolean)).size,
    links: links(s.data).length, // the kernel removes a pair with its namespace
    rules: rulesOfOneVM(),
  }
}

// The host's rules name VMs by "vmon*" and 10.200.0.0/16 together: one for a single VM would be a leftover, whoever's.
function rulesOfOneVM() {
  if (process.getuid() !== 0) return 0
  const lines = execFileSync('nft', ['list', 'ruleset'], { encoding: 'utf8' }).split('\n')
  return lines.filter((line) => /\bvmon\d|10\.200\.(?!0\.0\/16)/.test(line)).length
}

export const threads = (s) => fs.readdirSync(`/proc/${s.pid}/task`).length

const kinds = ['processes', 'descriptors', 'files', 'mounts', 'namespaces', 'links', 'rules']

// What `server` holds once it holds no more of any kind than `before`; fails after 30 s with what is too much.
export async function settled(server, before) {
  let left, trouble
  await eventually(() => {
    try { // what is being removed vanishes under the walk
      server.admin('gc')
      left = holdings(server)
    } catch (error) {
      trouble = error
      return false
    }
    return kinds.every((k) => left[k] <= before[k])
  }, 30).catch(() => {})
  assert.ok(left, String(trouble))
  for (const kind of kinds) assert.ok(left[kind] <= before[kind], `${kind}: ${before[kind]} before, ${left[kind]} now`)
  return left
}
