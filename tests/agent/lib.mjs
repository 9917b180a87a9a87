// Raw access to the agent: RPCs as the SDKs frame them, the serial channel, and files' paths of one test.
import fs from 'node:fs'
import http from 'node:http'
import net from 'node:net'
import path from 'node:path'

export const base = 'http://127.0.0.1:49983'
const keep = new http.Agent({ keepAlive: true })

export function request(method, target, { headers = {}, body, agent = keep } = {}) {
  return new Promise((resolve, reject) => {
    const q = http.request(base + target, { method, headers, agent }, r => {
      const parts = []
      r.on('data', d => parts.push(d))
      r.on('error', reject)
      r.on('end', () => resolve({ status: r.statusCode, headers: r.headers, body: Buffer.concat(parts) }))
    })
    q.on('error', reject)
    q.end(body)
  })
}

export async function unary(method, message, headers = {}) {
  const body = typeof message === 'string' ? message : JSON.stringify(message)
  const r = await request('POST', '/' + method, { headers: { 'content-type': 'application/json', ...headers }, body })
  let json
  try { json = JSON.parse(r.body) } catch { json = undefined }
  return { ...r, json }
}

export function envelope(text, flags = 0) {
  const payload = Buffer.from(text)
  const head = Buffer.alloc(5)
  head[0] = flags
  head.writeUInt32BE(payload.length, 1)
  return Buffer.concat([head, payload])
}

// A stream call: messages as they come through `on`, and all of them with the trailer at the end.
export function stream(method, message, { headers = {}, on, raw, signal } = {}) {
  return new Promise((resolve, reject) => {
    const body = raw ?? envelope(JSON.stringify(message))
    const q = http.request(`${base}/${method}`, { method: 'POST', agent: keep, signal,
      headers: { 'content-type': 'application/connect+json', ...headers } }, r => {
      let data = Buffer.alloc(0)
      const messages = []
      let trailer
      r.on('data', d => {
        data = Buffer.concat([data, d])
        while (data.length >= 5 && data.length >= 5 + data.readUInt32BE(1)) {
          const n = data.readUInt32BE(1)
          const json = n && JSON.parse(data.subarray(5, 5 + n))
          if (data[0] & 2) trailer = json
          else { messages.push(json); on?.(json) }
          data = data.subarray(5 + n)
        }
      })
      r.on('error', reject)
      r.on('end', () => resolve({ status: r.statusCode, headers: r.headers, messages, trailer, rest: data, body: data }))
    })
    q.on('error', reject)
    q.end(body)
  })
}

export async function run(script, options = {}) {
  const r = await stream('process.Process/Start',
    { process: { cmd: '/bin/bash', args: ['-c', script], ...options.process }, stdin: false, ...options.request }, options)
  const out = { stdout: [], stderr: [], pty: [] }
  for (const m of r.messages)
    for (const k of Object.keys(out)) if (m.event?.data?.[k]) out[k].push(Buffer.from(m.event.data[k], 'base64'))
  const end = r.messages.find(m => m.event?.end)?.event.end
  const text = k => Buffer.concat(out[k]).toString()
  return { ...r, end, pid: r.messages[0]?.event?.start?.pid, stdout: text('stdout'), stderr: text('stderr'), chunks: out }
}

export const basic = user => ({ authorization: 'Basic ' + Buffer.from(user + ':').toString('base64') })

let nextId = 1
export function serial(op, members = {}) {
  return new Promise((resolve, reject) => {
    const s = net.connect(process.env.AGENT_SERIAL)
    const id = nextId++
    let text = ''
    s.on('data', d => {
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

export function scratch(name) {
  const dir = path.join(process.env.AGENT_WORK, name)
  fs.rmSync(dir, { recursive: true, force: true })
  fs.mkdirSync(dir, { recursive: true })
  return dir
}

export const sleep = ms => new Promise(r => setTimeout(r, ms))
export async function until(what, ms = 10000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(20)) {
    const v = await what()
    if (v) return v
  }
  throw new Error('nothing happened within ' + ms + ' ms')
}
