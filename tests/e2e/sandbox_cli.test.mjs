// The unmodified command line of E2B with sandboxes: create, exec, connect, list, pause, resume, logs, metrics, kill.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, eventually, here, request } from './lib.mjs'

const guard = { timeout: 300_000 }
let home, id

before(async () => {
  await busyboxTemplate()
  home = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-cli-'))
}, guard)
after(() => fs.rmSync(home, { recursive: true, force: true }))

const env = () => ({ PATH: process.env.PATH, HOME: home, E2B_API_KEY: process.env.E2B_API_KEY, E2B_API_URL: process.env.E2B_API_URL, E2B_SANDBOX_URL: process.env.E2B_SANDBOX_URL, NO_UPDATE_NOTIFIER: '1' })
const program = path.join(here, 'node_modules/@e2b/cli/dist/index.js')
const plain = (text) => text.replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '')

// Runs it with `input` on a pipe: {status, out, err}.
function e2b(words, input) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [program, ...words], { cwd: home, env: env(), stdio: [input === undefined ? 'ignore' : 'pipe', 'pipe', 'pipe'] })
    let out = '', err = ''
    child.stdout.on('data', (d) => { out += d })
    child.stderr.on('data', (d) => { err += d })
    child.on('error', reject)
    child.on('close', (status) => resolve({ status, out: plain(out), err: plain(err) }))
    if (input !== undefined) child.stdin.end(input)
  })
}
const good = async (...words) => {
  const r = await e2b(words)
  assert.equal(r.status, 0, r.out + r.err)
  return r.out
}

// Runs it on a terminal of 100 columns and 30 rows; `write` types, `text()` is the screen so far.
function onTerminal(...words) {
  const script = 'import os,pty,sys,fcntl,termios,struct\n' +
    'def spawn():\n pid, fd = pty.fork()\n if pid == 0: os.execv(sys.argv[1], sys.argv[1:])\n' +
    ' fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))\n return pid, fd\n' +
    'pid, fd = spawn()\nimport select\n' +
    'while True:\n ready = select.select([0, fd], [], [])[0]\n' +
    ' if 0 in ready:\n  d = os.read(0, 4096)\n  if d.startswith(b"RESIZE"):\n   fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))\n  elif d: os.write(fd, d)\n' +
    ' if fd in ready:\n  try: d = os.read(fd, 4096)\n  except OSError: d = b""\n  if not d: break\n  os.write(1, d)\n' +
    'sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n'
  const child = spawn('python3', ['-c', script, process.execPath, program, ...words], { cwd: home, env: { ...env(), TERM: 'xterm' }, stdio: ['pipe', 'pipe', 'inherit'] })
  let text = ''
  child.stdout.on('data', (d) => { text += d })
  return { write: (s) => child.stdin.write(s), text: () => plain(text), ended: new Promise((r) => child.on('close', r)) }
}

test('S123: create and list', guard, async () => {
  const out = await good('sandbox', 'create', 'busybox', '--detach', '--timeout', '900')
  id = /\b(i[a-z0-9]{20})\b/.exec(out)?.[1]
  assert.ok(id, out)
  assert.match(await good('sandbox', 'list'), new RegExp(id))
  const json = JSON.parse(await good('sandbox', 'list', '--format', 'json'))
  assert.deepEqual(json.map((s) => s.sandboxId), [id])
  assert.match(await good('sandbox', 'info', id), new RegExp(id))
})

test('S123 E266: exec passes arguments, input and the exit code', guard, async () => {
  const piped = await e2b(['sandbox', 'exec', id, 'cat'], 'x\n')
  assert.deepEqual([piped.status, piped.out], [0, 'x\n'], piped.err)
  const failed = await e2b(['sandbox', 'exec', id, 'sh', '-c', 'echo out; echo err >&2; exit 7'])
  assert.deepEqual([failed.status, failed.out], [7, 'out\n'])
  assert.match(failed.err, /err\n/)
  const options = await e2b(['sandbox', 'exec', '-u', 'root', '-c', '/tmp', '-e', 'A=b c', id, 'echo "$A $(id -un) $(pwd)"'])
  assert.deepEqual([options.status, options.out], [0, 'b c root /tmp\n'], options.err)
  const big = 'y'.repeat(300_000)
  assert.equal((await e2b(['sandbox', 'exec', id, 'wc', '-c'], big)).out.trim(), '300000')
})

test('S123 E266: connect is a terminal that follows its window', guard, async () => {
  const t = onTerminal('sandbox', 'connect', id)
  await eventually(() => /[#$] ?$/.test(t.text()))
  t.write('stty size; echo do""ne\r')
  await eventually(() => /done\r+\n/.test(t.text()))
  assert.match(t.text(), /30 100/)
  t.write('RESIZE')
  await eventually(async () => {
    t.write('stty size\r')
    await new Promise((r) => setTimeout(r, 300))
    return t.text().includes('40 120')
  })
  t.write('exit\r')
  await t.ended
  assert.equal((await request('GET', `/sandboxes/${id}`)).json.state, 'running')
})

test('S123: pause and resume', guard, async () => {
  await Sandbox.connect(id).then((s) => s.commands.run('echo kept > /tmp/kept'))
  await good('sandbox', 'pause', id)
  assert.match(await good('sandbox', 'list', '--state', 'paused'), new RegExp(id))
  await good('sandbox', 'resume', id)
  assert.equal((await e2b(['sandbox', 'exec', id, 'cat', '/tmp/kept'])).out, 'kept\n')
})

test('S123: logs and metrics', guard, async () => {
  await good('sandbox', 'exec', id, 'echo', 'for-the-log')
  assert.match(await good('sandbox', 'logs', id), /INFO .*echo for-the-log.*message: 'process started'/)
  const lines = (await good('sandbox', 'logs', '--format', 'json', id)).trim().split('\n').map((l) => JSON.parse(l))
  assert.ok(lines.some((l) => l.event_type === 'process_end' || l.fields?.event_type === 'process_end' || JSON.stringify(l).includes('process_end')))
  const metrics = (await good('sandbox', 'metrics', '--format', 'json', id)).trim().split('\n').filter(Boolean).map((l) => JSON.parse(l))
  assert.ok(metrics.length > 0)
  assert.match(await good('sandbox', 'metrics', id), /CPU/i)
})

test('S124: snapshots', guard, async () => {
  const made = await good('sandbox', 'snapshot', 'create', id, '--name', 'by-hand')
  assert.match(made, /default\/by-hand:default/)
  const unnamed = /\b([a-z0-9]{20}:default)\b/.exec(await good('sandbox', 'snapshot', 'create', id))?.[1]
  assert.ok(unnamed)
  assert.match(await good('sandbox', 'snapshot', 'list'), /by-hand/)
  const listed = await good('sandbox', 'snapshot', 'list', id)
  assert.ok(listed.includes(unnamed) && listed.includes('by-hand'), listed)
  const copy = /\b(i[a-z0-9]{20})\b/.exec(await good('sandbox', 'create', 'by-hand', '--detach'))?.[1]
  assert.equal((await e2b(['sandbox', 'exec', copy, 'cat', '/tmp/kept'])).out, 'kept\n')
  await good('sandbox', 'kill', copy)
  await good('sandbox', 'snapshot', 'delete', 'default/by-hand:default', unnamed)
  assert.doesNotMatch(await good('sandbox', 'snapshot', 'list'), /by-hand/)
})

test('S123: kill', guard, async () => {
  await good('sandbox', 'kill', id)
  assert.equal((await request('GET', `/sandboxes/${id}`)).status, 404)
  const again = await e2b(['sandbox', 'kill', id])
  assert.match(again.out + again.err, /not found|wasn't found/i)
})
