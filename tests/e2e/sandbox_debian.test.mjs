// Issue item (a): the Debian image in full, then a sandbox whose port answers at once.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test, before, after } from 'node:test'
import { Sandbox, Template, waitForPort } from 'e2b'
import { eventually, image, logTo, request, viaSandbox } from './lib.mjs'

let context, sandbox

before(async () => {
  context = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-context-'))
  fs.mkdirSync(path.join(context, 'app/nested'), { recursive: true })
  fs.writeFileSync(path.join(context, 'app/.hidden'), 'hidden')
  fs.writeFileSync(path.join(context, 'app/server.py'), 'import http.server\nhttp.server.test(http.server.SimpleHTTPRequestHandler, port=8000, bind="0.0.0.0")\n')
  fs.symlinkSync('../server.py', path.join(context, 'app/nested/link'))
  const template = Template({ fileContextPath: context })
    .fromImage(image('debian:12'))
    .aptInstall(['python3-minimal', 'libpython3-stdlib', 'procps'])
    .copy('app', '/srv/app', { mode: 0o750 })
    .setEnvs({ SERVER_NAME: 'from env' })
    .setWorkdir('/srv/app')
    .runCmd('sudo -n true && test "$(id -un) $(sudo -n id -un)" = "user root"') // 189
    .runCmd('test -x server.py && echo "$SERVER_NAME" > name.txt')
    .setStartCmd('python3 server.py', waitForPort(8000))
  const began = Date.now()
  await Template.build(template, 'debian-web', { cpuCount: 2, memoryMB: 1024, onBuildLogs: logTo('debian-web') })
  const seconds = (Date.now() - began) / 1000
  console.log(`# the Debian template took ${seconds.toFixed(0)} s`)
  sandbox = await Sandbox.create('debian-web', { timeoutMs: 600_000 })
})

after(async () => {
  await sandbox?.kill()
  fs.rmSync(context, { recursive: true })
})

test('the port of the start command answers at once', async () => {
  const r = await request('GET', '/name.txt', { headers: viaSandbox(sandbox.sandboxId, 8000), key: null })
  assert.equal(r.status, 200)
  assert.equal(r.body, 'from env\n')
})

test('the copied tree kept its dot file, link and mode', async () => {
  const out = (await sandbox.commands.run('pwd; cat .hidden; readlink nested/link; stat -c "%a %U:%G" server.py nested .')).stdout
  assert.deepEqual(out.split('\n'), ['/srv/app', 'hidden../server.py', '750 user:user', '750 user:user', '750 user:user', ''])
})

test('189 220 222 the distribution runs as a user expects', async () => {
  const run = async (cmd) => (await sandbox.commands.run(cmd)).stdout.trim()
  assert.equal(await run('cat /proc/1/comm'), 'systemd')
  assert.equal(await run('sudo -n id -un'), 'root')
  assert.equal(await run('cat /etc/hostname; id -un; stat -c %a /code'), 'vibemon\nuser\n777')
  assert.equal(await run('for p in ss curl git sudo jq socat nft; do command -v $p >/dev/null || sudo sh -c "command -v $p" >/dev/null || echo missing $p; done'), '')
  assert.equal(await run('cat /etc/tmpfiles.d/fuse.conf; stat -c %a /dev/fuse'), 'z /dev/fuse 0666 root root -\n666')
  assert.equal(await run('echo $IMAGE_ENV'), 'from-the-image')
  assert.equal(await run('pgrep -f "python3 server.py" | wc -l').then(Number) > 0, true)
  assert.equal(await run('sudo systemctl is-active envd'), 'active')
  assert.match(await run('cat /run/e2b/.E2B_SANDBOX_ID'), new RegExp(`^${sandbox.sandboxId}$`))
})

test('commands, files, PTY and a background process', async () => {
  await sandbox.files.write('notes/a.txt', 'text')
  assert.equal(await sandbox.files.read('/home/user/notes/a.txt'), 'text')
  const background = await sandbox.commands.run('for i in 1 2 3; do echo $i; done; sleep 300', { background: true, timeoutMs: 0 })
  await eventually(() => background.stdout === '1\n2\n3\n')
  assert.ok((await sandbox.commands.list()).some((p) => p.pid === background.pid))
  assert.equal(await sandbox.commands.kill(background.pid), true)
  let screen = ''
  const pty = await sandbox.pty.create({ cols: 100, rows: 30, timeoutMs: 120_000, onData: (d) => { screen += Buffer.from(d).toString() } })
  await sandbox.pty.sendInput(pty.pid, Buffer.from('stty size; tty; exit 0\n'))
  await pty.wait()
  assert.match(screen, /30 100/)
  assert.match(screen, /\/dev\/pts\//)
})

test('the clock of a fork is right', async () => {
  const before = Date.now()
  const guest = Number((await sandbox.commands.run('date +%s%3N')).stdout)
  assert.ok(guest >= before - 1000 && guest <= Date.now() + 1000, `guest ${guest}, host ${before}`)
})

test('S64: without its memory it boots, and the port of the start command answers at once', async () => {
  await sandbox.commands.run('echo kept > /home/user/kept')
  await sandbox.pause({ keepMemory: false })
  sandbox = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 600_000 })
  const r = await request('GET', '/name.txt', { headers: viaSandbox(sandbox.sandboxId, 8000), key: null })
  assert.deepEqual([r.status, r.body], [200, 'from env\n'])
  assert.equal((await sandbox.commands.run('cat kept /proc/1/comm; sudo systemctl is-active envd; id -un; pwd', { cwd: '/home/user' })).stdout,
    'kept\nsystemd\nactive\nuser\n/home/user\n')
})

test('timers are exact, and the tick stops while the guest is idle', async () => {
  const out = (await sandbox.commands.run('sudo cat /proc/timer_list')).stdout
  assert.deepEqual(new Set(out.match(/\.hres_active *: \d/g).map((s) => s.at(-1))), new Set(['1']))
  assert.deepEqual(new Set(out.match(/\.nohz_mode *: \d/g).map((s) => s.at(-1))), new Set(['2']))
})
