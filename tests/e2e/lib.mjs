// Shared by the end-to-end tests: images, templates built once a run, raw requests.
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import net from 'node:net'
import path from 'node:path'
import { after } from 'node:test'
import { fileURLToPath } from 'node:url'
import { Template } from 'e2b'

export const dir = process.env.VMON_E2E_DIR
export const port = Number(process.env.VMON_E2E_PORT)
export const apiKey = process.env.E2B_API_KEY
export const here = path.dirname(fileURLToPath(import.meta.url))
export const image = (name) => `${process.env.VMON_E2E_REGISTRY}/vmon/${name}`

export function serve(action) {
  execFileSync(path.join(here, 'serve'), [action], { stdio: 'inherit' })
}

// `vmon admin` against the run's server; what it prints.
export const admin = (...words) => execFileSync(process.env.VMON, ['admin', '--data-dir', path.join(dir, 'data'), '--cluster-url',
  `http://127.0.0.1:${process.env.VMON_E2E_CLUSTER_PORT}`, ...words], { encoding: 'utf8' })

// The log of every build goes to a file beside the server's log: a failed run shows what happened.
export function logTo(name) {
  const file = path.join(dir, `build-${name}.log`)
  return (entry) => fs.appendFileSync(file, `${entry.timestamp.toISOString()} ${entry.level} ${entry.message}\n`)
}

// Builds `name` unless an earlier test of this run did (the templates are what costs time under emulation).
export async function template(name, make, options = {}) {
  if (await Template.exists(name)) return
  await Template.build(make(), name, { cpuCount: 1, memoryMB: 512, onBuildLogs: logTo(name), ...options })
}

export const busybox = () => Template().fromImage(image('busybox:1'))
export const busyboxTemplate = () => template('busybox', busybox)

// One raw HTTP request; answers {status, headers, body, json}.
export function request(method, target, { headers = {}, body, key = apiKey, agent } = {}) {
  return new Promise((resolve, reject) => {
    const all = { ...headers }
    if (key) all['X-API-Key'] = key
    if (body !== undefined && typeof body !== 'string') {
      body = JSON.stringify(body)
      all['Content-Type'] = 'application/json'
    }
    const req = http.request({ host: '127.0.0.1', port, method, path: target, headers: all, agent }, (res) => {
      const chunks = []
      res.on('data', (c) => chunks.push(c))
      res.on('end', () => {
        const text = Buffer.concat(chunks).toString()
        let json
        try { json = JSON.parse(text) } catch { /* not JSON */ }
        resolve({ status: res.statusCode, headers: res.headers, body: text, json })
      })
      res.on('error', reject)
    })
    req.on('error', reject)
    req.end(body)
  })
}

// Sends raw bytes, answers everything until the server closes or `until` says it is enough.
export function raw(bytes, until = () => false) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(port, '127.0.0.1', () => socket.write(bytes))
    let got = Buffer.alloc(0)
    socket.on('data', (c) => {
      got = Buffer.concat([got, c])
      if (until(got.toString('latin1'))) socket.destroy()
    })
    socket.on('close', () => resolve(got.toString('latin1')))
    socket.on('error', reject)
  })
}

export const viaSandbox = (id, guestPort) => ({ 'E2b-Sandbox-Id': id, 'E2b-Sandbox-Port': String(guestPort) })

// A test that failed leaves its sandboxes: the tests of the next file find none of them.
after(async () => {
  const left = (await request('GET', '/v2/sandboxes?state=running,paused').catch(() => null))?.json
  for (const { sandboxID } of Array.isArray(left) ? left : []) await request('DELETE', `/sandboxes/${sandboxID}`)
})

// Waits for `probe` to return something true; the hang guard is generous.
export async function eventually(probe, seconds = 60) {
  const end = Date.now() + seconds * 1000
  for (;;) {
    const value = await probe()
    if (value) return value
    if (Date.now() > end) throw new Error(`not within ${seconds} s`)
    await new Promise((r) => setTimeout(r, 100))
  }
}

const filesOf = (p) => {
  try {
    return ['cwd', ...fs.readdirSync(`/proc/${p}/fd`).map((n) => `fd/${n}`)].map((n) => {
      try { return fs.readlinkSync(`/proc/${p}/${n}`) } catch { return '' }
    })
  } catch { return [] }
}

// Host ends of the networks of VMs of the data directory `data`: their alias is the VM's directory.
export function links(data) {
  return fs.readdirSync('/sys/class/net').filter((name) => {
    try { return fs.readFileSync(`/sys/class/net/${name}/ifalias`, 'utf8').startsWith(`${data}/`) } catch { return false }
  })
}

// Machines of the data directory `data` by their processes: whoever has a file of it open or for an argument.
export function machineProcesses(data) {
  return fs.readdirSync('/proc').filter((p) => /^\d+$/.test(p)).filter((p) => {
    try {
      const cmd = fs.readFileSync(`/proc/${p}/cmdline`, 'latin1').split('\0')
      return /vmon-shim|qemu-system|virtiofsd/.test(cmd[0]) &&
        (cmd.some((a) => a.includes(`${data}/`)) || filesOf(p).some((f) => f.startsWith(`${data}/`)))
    } catch { return false }
  })
}

// Processes and mounts that belong to the data directory of this run.
export function traces() {
  const processes = machineProcesses(`${dir}/data`)
  const mounts = fs.readFileSync('/proc/self/mountinfo', 'latin1').split('\n').filter((l) => l.includes(dir))
  return { processes, mounts }
}
