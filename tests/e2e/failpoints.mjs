// Power cuts: the server is killed where something becomes durable (src/base/failpoint.h), and started again.
import fs from 'node:fs'
import path from 'node:path'
import { dir, eventually, request, serve } from './lib.mjs'

export const data = path.join(dir, 'data')
const record = path.join(dir, 'failpoints.log')

export async function restart(environment = {}) {
  serve('ensure-stopped')
  Object.assign(process.env, environment)
  serve('start')
  for (const name of Object.keys(environment)) delete process.env[name]
  // The event loop has to see that the connections of before are closed, or the next request takes one of them.
  await eventually(() => request('GET', '/health').catch(() => null))
}

// Did the server die under the request?
export const isBroken = (error) =>
  ['ECONNREFUSED', 'ECONNRESET', 'EPIPE'].includes(error.code) || /hang up/.test(error.message)

export async function startRecording() {
  fs.rmSync(record, { force: true })
  await restart({ VMON_FAILPOINT_LOG: record })
}

// A passage as both runs have it: patterns instead of random IDs.
const general = (line) => line.replace(data, '@').replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '*').replace(/[0-9a-f]{64}/g, '*')
  .replace(/[a-z0-9]{20,24}/g, '*').replace(/^(commit\S* (?:log|team-template))\/.*/, (all, head) =>
    head + '/*'.repeat(all.split('/').length - 1)).replace('@', data)

// place, pattern and how many times it is passed; the log's commits follow the clock, so only their first counts.
function pointsOf(lines) {
  const points = new Map()
  for (const line of lines) {
    const point = general(line)
    points.set(point, /^commit\S* log/.test(point) ? 1 : (points.get(point) ?? 0) + 1)
  }
  return [...points].flatMap(([point, count]) => Array.from({ length: Math.min(count, 3) }, (_, i) =>
    `${point.replace(' ', ':')}@${i + 1}`))
}

// A name without random IDs for the test's title.
export const title = (point) => point.replace(data, '').replaceAll('/*', '/…')

// The points passed since startRecording().
export const recorded = () => pointsOf(fs.readFileSync(record, 'utf8').trim().split('\n'))
