// Raw access to an agent: HTTP, RPCs as the SDKs frame them, single bytes on a socket, the serial channel, and files' paths of one test.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import http from 'node:http'
import net from 'node:net'
import path from 'node:path'

export const PORT = 49983
const keep = new http.Agent({ keepAlive: true, maxSockets: 1000 })

export const basic = (user) => ({ authorization: 'Basic ' + Buffer.from(user.includes(':') ? user : user + ':').toString('base64') })
export const sha512 = (text) => createHash('sha512').update(text).digest('hex')
export const b64 = (text) => Buffer.from(text).toString('base64')
export const sleep = (ms) => new Promise((r) => setTimeout(r, ms))

export async function until(what, ms = 20000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(20)) {
    const v = await what()
    if (v) return v
  }
  throw new Error('nothing happened within ' + ms + ' ms')
}

export function envelope(message, flags = 0) {
  const payload = Buffer.from(typeof message === 'object' && !Buffer.isBuffer(message) ? JSON.stringify(message) : message)
  const head = Buffer.alloc(5)
  head[0] = flags
  head.writeUInt32BE(payload.length, 1)
  return Buffer.concat([head, payload])
}

// Takes whole envelopes off `data`: [[flags, payload]…] and what is left.
export function envelopes(data) {
  const list = []
  while (data.length >= 5 && data.length >= 5 + data.readUInt32BE(1)) {
    const n = data.readUInt32BE(1)
    list.push([data[0], data.subarray(5, 5 + n)])
    data = data.subarray(5 + n)
  }
  return [list, data]
}

// One agent, at an address of loopback.
export function client(host = '127.0.0.1', port = PORT) {
  const base = `http://${host}:${port}`

  function request(method, target, { headers = {}, body, agent = keep, signal } = {}) {
    return new Promise((resolve, reject) => {
      const q = http.request(base + target, { method, headers, agent, signal }, (r) => {
        const parts = []
        r.on('data', (d) => parts.push(d))
        r.on('error', reject)
        r.on('end', () => {
          const whole = Buffer.concat(parts)
          resolve({ status: r.statusCode, headers: r.headers, body: whole, get text() { return whole.toString() }, get json() { return JSON.parse(whole) } })
        })
      })
      q.on('error', reject)
      if (typeof body?.pipe === 'function') body.pipe(q)
      else q.end(body)
    })
  }

  async function unary(method, message, headers = {}) {
    const body = typeof message === 'string' || Buffer.isBuffer(message) ? message : JSON.stringify(message)
    const r = await request('POST', '/' + method, { headers: { 'content-type': 'application/json', ...headers }, body })
    let json
    try { json = JSON.parse(r.body) } catch { json = undefined }
    return { status: r.status, headers: r.headers, body: r.body, json }
  }

  // A stream call: messages as they come through `on`, and all of them with the trailer at the end.
  function stream(method, message, { headers = {}, on, raw, signal } = {}) {
    return new Promise((resolve, reject) => {
      const q = http.request(`${base}/${method}`, { method: 'POST', agent: keep, signal,
        headers: { 'content-type': 'application/connect+json', ...headers } }, (r) => {
        const messages = []
        const flags = []
        let trailer, rest = Buffer.alloc(0)
        const bytes = []
        r.on('data', (d) => {
          if (r.statusCode !== 200) { bytes.push(d); return }
          const [list, left] = envelopes(rest.length ? Buffer.concat([rest, d]) : d)
          rest = left
          for (const [flag, payload] of list) {
            const json = payload.length ? JSON.parse(payload) : undefined
            flags.push(flag)
            if (flag & 2) trailer = json
            else { messages.push(json); on?.(json) }
          }
        })
        r.on('error', reject)
        r.on('end', () => resolve({ status: r.statusCode, headers: r.headers, messages, flags, trailer, rest, body: Buffer.concat(bytes) }))
      })
      q.on('error', reject)
      q.end(raw ?? envelope(JSON.stringify(message)))
    })
  }

  async function start(request, options = {}) {
    const r = await stream('process.Process/Start', request, options)
    const out = { stdout: [], stderr: [], pty: [] }
    for (const m of r.messages)
      for (const k of Object.keys(out)) if (m.event?.data?.[k]) out[k].push(Buffer.from(m.event.data[k], 'base64'))
    const end = r.messages.find((m) => m.event?.end)?.event.end
    const text = (k) => Buffer.concat(out[k]).toString()
    return { ...r, end, pid: r.messages[0]?.event?.start?.pid, stdout: text('stdout'), stderr: text('stderr'), chunks: out }
  }

  // The login shell of the SDKs, without input.
  const bash = (script, { process: p, request: q, ...options } = {}) =>
    start({ process: { cmd: '/bin/bash', args: ['-l', '-c', script], ...p }, stdin: false, ...q }, options)

  // A stream that goes on: started once its first message is there; `events` grow; `done` is its whole answer.
  async function open(method, message, options = {}) {
    const abort = new AbortController()
    const live = { events: [], out: '', abort: () => abort.abort() }
    const first = new Promise((resolve, reject) => {
      live.done = stream(method, message, { ...options, signal: abort.signal, on: (m) => {
        live.events.push(m)
        for (const v of Object.values(m.event?.data ?? {})) live.out += Buffer.from(v, 'base64').toString('latin1')
        resolve()
      } })
      live.done.then((r) => (live.events.length ? null : reject(new Error('no message: ' + JSON.stringify(r.trailer)))), reject)
      live.done.catch(() => {})
    })
    await first
    live.pid = live.events[0].event?.start?.pid
    live.end = async () => (await live.done).messages.find((m) => m.event?.end)?.event.end
    live.says = (text, ms) => until(() => (text instanceof RegExp ? text.test(live.out) : live.out.includes(text)), ms)
    return live
  }
  const spawned = (script, { process: p, request: q, ...options } = {}) =>
    open('process.Process/Start', { process: { cmd: '/bin/bash', args: ['-c', script], ...p }, ...q }, options)
  const terminal = (options = {}, size = { cols: 80, rows: 24 }) =>
    open('process.Process/Start', { process: { cmd: '/bin/bash', args: ['-i', '-l'], envs: { TERM: 'xterm-256color', LANG: 'C.UTF-8' } }, pty: { size } }, options)

  const input = (pid, text) => unary('process.Process/SendInput', { process: { pid }, input: { stdin: b64(text) } })
  const type = (pid, text) => unary('process.Process/SendInput', { process: { pid }, input: { pty: b64(text) } })
  const kill = (pid, signal = 'SIGNAL_SIGKILL') => unary('process.Process/SendSignal', { process: { pid }, signal })
  const list = async () => (await unary('process.Process/List', {})).json.processes ?? []
  const init = (body) => request('POST', '/init', { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) })

  return { host, port, base, request, unary, stream, start, bash, open, spawned, terminal, input, type, kill, list, init }
}

const shared = client()
export const { base, request, unary, stream, start, bash, open, spawned, terminal, input, type, kill, list, init } = shared

// A shell without a login, as the template builder uses one.
export const run = (script, options = {}) =>
  start({ process: { cmd: '/bin/bash', args: ['-c', script], ...options.process }, stdin: false, ...options.request }, options)

// Writes `parts` to a fresh connection, one after the other and each in a segment of its own, and reads until `stop` says so or the peer closes.
export function dialog(parts, { host = '127.0.0.1', port = PORT, stop = () => false } = {}) {
  return new Promise((resolve, reject) => {
    const s = net.connect(port, host)
    let text = ''
    s.setNoDelay(true)
    s.on('connect', async () => {
      for (const part of parts) {
        await new Promise((r) => s.write(part, r))
        if (parts.length > 1) await new Promise((r) => setImmediate(r))
      }
    })
    s.on('data', (d) => {
      text += d.toString('latin1')
      if (stop(text)) s.destroy()
    })
    s.on('error', reject)
    s.on('close', () => resolve(text))
  })
}

// An agent of its own, for tests that give it a token or count what it holds; it ends with the test file.
let next = 1
export async function ownAgent({ env = {}, args = [] } = {}) {
  const host = `127.${1 + (process.pid >> 8) % 250}.${process.pid & 255}.${next++}` // test files run beside each other
  const serial = path.join(process.env.AGENT_WORK, 'serial-' + process.pid + '-' + host)
  const child = spawn(process.env.AGENT_BINARY, ['-root-safe', '-listen', host, '-port', String(PORT), '-serial', serial, ...args],
    { stdio: ['ignore', 'ignore', 'inherit'], env: { ...process.env, ...env } })
  child.unref()
  process.on('exit', () => child.kill())
  const c = client(host)
  await until(() => c.request('GET', '/health').catch(() => null))
  assert.equal((await c.init({ defaultUser: 'user' })).status, 204)
  return { ...c, pid: child.pid, serial: (op, members) => call(serial, op, members) }
}

// The channel is served by a thread of its own, perhaps after the port answers.
const connected = (socket) => until(() => new Promise((resolve) => {
  const s = net.connect(socket, () => resolve(s)).on('error', () => resolve(null))
}))

let nextId = 1
async function call(socket, op, members = {}) {
  const s = await connected(socket)
  return new Promise((resolve, reject) => {
    const id = nextId++
    let text = ''
    s.on('data', (d) => {
      text += d
      for (const line of text.split('\n').slice(0, -1)) {
        const m = JSON.parse(line)
        if (m.id === id && (m.result || m.error)) { s.end(); resolve(m) }
      }
    })
    s.on('error', reject)
    s.write(JSON.stringify({ id, op, ...members }) + '\n')
  })
}
export const serial = (op, members) => call(process.env.AGENT_SERIAL, op, members)

// A fresh directory that belongs to `user`, below its home so that relative paths reach it.
export const HOME = '/home/user'
export const USER = { uid: 1000, gid: 1000 }
export function scratch(name) {
  const dir = path.join(HOME, name)
  fs.rmSync(dir, { recursive: true, force: true })
  fs.mkdirSync(dir, { recursive: true })
  fs.chownSync(dir, USER.uid, USER.gid)
  return dir
}

export const descriptors = (pid) => fs.readdirSync(`/proc/${pid}/fd`).length
export function residentKib(pid) {
  return Number(/VmRSS:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))[1])
}
export const children = (pid) =>
  fs.readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(/\s+/).filter(Boolean).map(Number)
export const alive = (pid) => fs.existsSync(`/proc/${pid}`)

// err(code) of a stream call (section 1.5).
export function failed(r, code, message) {
  assert.equal(r.status, 200)
  assert.equal(r.headers['content-type'], 'application/connect+json')
  assert.equal(r.trailer?.error?.code, code, JSON.stringify(r.trailer))
  if (message) assert.match(r.trailer.error.message, message)
}
// err(code) of a unary call.
export function refused(r, status, code, message) {
  assert.equal(r.status, status, r.body.toString())
  assert.equal(r.headers['content-type'], 'application/json')
  assert.equal(r.json.code, code)
  if (message) assert.match(r.json.message, message)
}
