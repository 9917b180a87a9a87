// Starting processes, their output and their environment (envd contract 2.1 and 5, checklist 55 to 84 and 123 to 130).
import assert from 'node:assert/strict'
import fs from 'node:fs'
import net from 'node:net'
import { before, test } from 'node:test'
import { HOME, PORT, USER, alive, b64, basic, bash, children, descriptors, envelope, failed, init, kill, list, open, ownAgent, residentKib, run, scratch, sha512, spawned, start, unary, until } from './lib.mjs'

before(() => init({ defaultUser: 'user', envVars: {} }))

test('E55: start, output, end and the end of the stream; E56: the end of exit 0', async () => {
  const r = await bash('echo hi')
  const [first, ...rest] = r.messages.map((m) => m.event)
  assert.ok(first.start.pid > 0)
  assert.deepEqual(rest, [{ data: { stdout: 'aGkK' } }, { end: { exited: true, status: 'exit status 0' } }])
  assert.deepEqual(r.trailer, {})
})

test('E57: exit 3; E58: a kill; E59: other signals', async () => {
  assert.deepEqual((await bash('exit 3')).end, { exitCode: 3, exited: true, status: 'exit status 3', error: 'exit status 3' })
  assert.deepEqual((await bash('kill -9 $$')).end, { exitCode: -1, status: 'signal: killed', error: 'signal: killed' })
  const names = { SEGV: 'segmentation fault', HUP: 'hangup', ABRT: 'aborted', USR1: 'user defined signal 1', XCPU: 'CPU time limit exceeded', SYS: 'bad system call', 35: 'signal 35' }
  for (const [signal, name] of Object.entries(names)) {
    const { end } = await run(`ulimit -c 0; exec sh -c 'kill -${signal} $$'`)
    assert.equal(end.exitCode, -1)
    assert.ok(end.status.startsWith('signal: ' + name), `${signal}: ${end.status}`)
    assert.equal(end.error, end.status)
  }
})

test('E60: two streams', async () => {
  const r = await bash('echo out; echo err >&2')
  assert.deepEqual([r.stdout, r.stderr], ['out\n', 'err\n'])
  assert.ok(r.messages.every((m) => Object.keys(m.event.data ?? {}).length <= 1))
})

test('E61: 10 MiB, exact and in events of at most 32768 bytes', { timeout: 120000 }, async () => {
  const r = await run('seq 1 2000000 | head -c 10485760')
  let wanted = ''
  for (let i = 1; wanted.length < 10485760; i++) wanted += i + '\n'
  assert.ok(r.stdout === wanted.slice(0, 10485760), `${r.stdout.length} bytes`)
  const sizes = r.chunks.stdout.map((c) => c.length)
  assert.ok(Math.max(...sizes) <= 32768, `${Math.max(...sizes)}`)
})

test('E62: binary output', async () => {
  const dir = scratch('binary')
  const bytes = Buffer.from(Array.from({ length: 65536 }, (_, i) => (i * 7 + (i >> 8)) & 255))
  fs.writeFileSync(dir + '/b', bytes)
  const r = await run(`cat ${dir}/b`)
  assert.ok(Buffer.concat(r.chunks.stdout).equals(bytes))
})

test('E63: a command that is not there is exit 127; E64: one that cannot be executed is 126', async () => {
  const dir = scratch('exec')
  fs.writeFileSync(dir + '/plain', '#!/bin/sh\n', { mode: 0o644 })
  const exits = { '/no/such': 127, 'no-such-command': 127, '': 127, [dir + '/plain']: 126, [dir]: 126, [dir + '/plain/x']: 127 }
  for (const [cmd, code] of Object.entries(exits)) {
    const r = await start({ process: { cmd } })
    assert.ok(r.pid > 0, JSON.stringify(r))
    assert.deepEqual([cmd, r.end.exitCode, r.trailer], [cmd, code, {}])
    if (cmd) assert.match(r.stderr, new RegExp(cmd.replace(/[/]/g, '\\/')))
  }
})

test('E65: arguments as they are; E66: PATH is searched', async () => {
  const args = ['a b', "it's", '"q"', '$HOME', 'line\nline', '', '*', '\\', 'é', '-n']
  const r = await start({ process: { cmd: 'printf', args: ['<%s>', ...args] } })
  assert.equal(r.stdout, args.map((a) => `<${a}>`).join(''))
  const dir = scratch('path')
  fs.writeFileSync(dir + '/mine', '#!/bin/sh\necho mine $1\n', { mode: 0o755 })
  assert.equal((await start({ process: { cmd: 'mine', args: ['x'], envs: { PATH: dir } } })).stdout, 'mine x\n')
  fs.writeFileSync(dir + '/script', 'echo script\n', { mode: 0o755 })
  assert.equal((await start({ process: { cmd: dir + '/script' } })).stdout, 'script\n')
})

test('E67: a working directory; E68: none; E69: one below home', async () => {
  const pwd = async (c, cwd) => (await c.start({ process: { cmd: 'pwd', cwd } })).stdout.trim()
  const own = await ownAgent()
  scratch('x')
  assert.equal(await pwd(own, '/tmp'), '/tmp')
  assert.equal(await pwd(own, undefined), HOME)
  assert.equal((await own.init({ defaultWorkdir: '/usr' })).status, 204)
  assert.equal(await pwd(own, undefined), '/usr')
  assert.equal(await pwd(own, '~/x'), HOME + '/x')
  assert.equal(await pwd(own, 'x'), HOME + '/x')
  assert.equal(await pwd(own, '~'), HOME)
  assert.equal((await run('pwd; echo $PWD', { process: { cwd: 'x/..//x' } })).stdout, `${HOME}/x\n${HOME}/x\n`)
})

test('E70: a working directory that is not there; E71: of another user; E72: a file; E73: one that is closed to the user', async () => {
  const in_ = (cwd) => start({ process: { cmd: 'pwd', cwd } })
  const none = async (cwd, message) => {
    const r = await in_(cwd)
    failed(r, 'invalid_argument', message)
    assert.deepEqual(r.messages, [])
  }
  await none('/missing', /^cwd '\/missing' does not exist$/)
  await none('~root', /cannot expand user-specific home dir/)
  await none('/etc/passwd', /^error starting process 'pwd': .*not a directory/i)
  const dir = scratch('closed') + '/root'
  fs.mkdirSync(dir, { mode: 0o700 })
  await none(dir, /^error starting process 'pwd': .*permission denied/i)
  const pty = await start({ process: { cmd: 'sh', args: ['-i'], cwd: dir }, pty: { size: { cols: 80, rows: 24 } } })
  failed(pty, 'invalid_argument', /^error starting pty with command 'sh -i' in dir '.*' with '80' cols and '24' rows: .*permission denied/i)
  const args = Array(40).fill('x'.repeat(130000))
  failed(await start({ process: { cmd: 'true', args } }), 'invalid_argument', /^error starting process 'true x+/)
})

test('E74: no input', async () => {
  assert.deepEqual((await bash('cat; readlink /proc/self/fd/0')).stdout, '/dev/null\n')
})

test('E75: without a word on input it stays open', async () => {
  for (const request of [{}, { stdin: true }]) {
    const p = await spawned('cat; echo end', { request })
    assert.equal((await unary('process.Process/SendInput', { process: { pid: p.pid }, input: { stdin: b64('x') } })).status, 200)
    await p.says('x')
    assert.ok((await list()).some((q) => q.pid === p.pid))
    await unary('process.Process/CloseStdin', { process: { pid: p.pid } })
    assert.equal((await p.end()).status, 'exit status 0')
    assert.equal(p.out, 'xend\n')
  }
})

test('E76: a grandchild that holds the output holds the end; E77: one that does not', async () => {
  const p = await spawned('sleep 2 & echo x')
  await p.says('x\n')
  const started = Date.now()
  await p.done
  assert.ok(Date.now() - started > 1000)
  const r = await bash('sleep 100 >/dev/null 2>&1 & echo $!')
  assert.equal(r.end.status, 'exit status 0')
  process.kill(Number(r.stdout))
})

test('E78: the deadline ends stream and process; E81: not a process that was faster', async () => {
  const [r, quick] = await Promise.all([run('echo $$; exec sleep 100', { headers: { 'connect-timeout-ms': '1000' } }), bash('echo x', { headers: { 'connect-timeout-ms': '10000' } })])
  failed(r, 'deadline_exceeded', /^context deadline exceeded$/)
  assert.equal(r.end, undefined)
  await until(() => !alive(Number(r.stdout)))
  assert.deepEqual([quick.stdout, quick.end.status, quick.trailer], ['x\n', 'exit status 0', {}])
})

test('E79: the deadline outlives the client; E80: nothing else ends a process whose client left', async () => {
  const doomed = await spawned('exec sleep 100', { headers: { 'connect-timeout-ms': '1000' } })
  doomed.abort()
  const marker = scratch('left') + '/done'
  const p = await spawned(`head -c 3000000 /dev/zero; echo done >${marker}; exec sleep 100`)
  p.abort()
  await until(() => !alive(doomed.pid))
  await until(() => fs.existsSync(marker))
  assert.ok((await list()).some((q) => q.pid === p.pid))
  assert.ok(!(await list()).some((q) => q.pid === doomed.pid))
  await kill(p.pid)
})

test('E82: a reader that stops holds the process, not the memory', { timeout: 120000 }, async () => {
  const own = await ownAgent()
  const body = envelope({ process: { cmd: 'sh', args: ['-c', 'head -c 104857600 /dev/zero'] }, stdin: false })
  const s = net.connect(PORT, own.host)
  await new Promise((r) => s.on('connect', r))
  s.write(Buffer.concat([Buffer.from(`POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/connect+json\r\nContent-Length: ${body.length}\r\n\r\n`), body]))
  await new Promise((r) => s.once('readable', r))
  const { pid } = await until(async () => (await own.list())[0])
  const waits = () => /pipe_write|anon_pipe_write/.test(fs.readFileSync(`/proc/${pid}/wchan`, 'latin1')) || children(pid).some((c) => /pipe_write/.test(fs.readFileSync(`/proc/${c}/wchan`, 'latin1')))
  const state = () => [pid, ...children(pid)].map((q) => fs.readFileSync(`/proc/${q}/io`, 'utf8')).join('')
  let last, same = 0
  await until(() => { const now = state(); same = now === last ? same + 1 : 0; last = now; return same > 20 || waits() && same > 20 }, 60000)
  assert.ok(alive(pid))
  assert.ok(residentKib(own.pid) < 32768, `${residentKib(own.pid)} KiB`)
  let bytes = 0
  s.on('data', (d) => { bytes += d.length })
  await new Promise((r) => s.on('close', r))
  assert.ok(bytes > 104857600 * 4 / 3, `${bytes}`)
})

test('E83: every subscriber gets everything', { timeout: 60000 }, async () => {
  const p = await spawned('read x; seq 1 200000')
  const more = await Promise.all([1, 2].map(() => open('process.Process/Connect', { process: { pid: p.pid } })))
  await unary('process.Process/SendInput', { process: { pid: p.pid }, input: { stdin: b64('\n') } })
  await Promise.all([p, ...more].map((q) => q.done))
  assert.ok(p.out.endsWith('\n200000\n'))
  for (const m of more) assert.ok(m.out === p.out)
})

test('E84: 1000 processes leave nothing', { timeout: 300000 }, async () => {
  const own = await ownAgent()
  for (let i = 0; i < 50; i++) await own.bash('true')
  const [fds, kib] = [descriptors(own.pid), residentKib(own.pid)]
  for (let i = 0; i < 1000; i++) assert.equal((await own.start({ process: { cmd: 'true' } })).end.status, 'exit status 0')
  await until(() => descriptors(own.pid) <= fds)
  assert.deepEqual(children(own.pid), [])
  assert.ok(residentKib(own.pid) - kib < 2048, `${residentKib(own.pid) - kib} KiB more`)
})

test('E123: the environment; E124: nothing of the agent leaks', async () => {
  const own = await ownAgent({ env: { SECRET_OF_THE_AGENT: '1' } })
  await own.serial('init', { sandbox_id: 'ithesandbox', template_id: 'thetemplate' })
  const env = Object.fromEntries((await own.start({ process: { cmd: 'env' } })).stdout.trim().split('\n').map((l) => l.split(/=(.*)/s)))
  assert.deepEqual(env, { HOME, USER: 'user', LOGNAME: 'user', PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', PWD: HOME,
    E2B_SANDBOX: 'true', E2B_SANDBOX_ID: 'ithesandbox', E2B_TEMPLATE_ID: 'thetemplate' })
  const root = await own.start({ process: { cmd: 'env' } }, { headers: basic('root') })
  assert.match(root.stdout, /^HOME=\/root$/m)
})

test('E125: variables of init and of a request; E126: internal ones are not for init; E127: a request wins', async () => {
  const own = await ownAgent()
  await own.serial('init', { sandbox_id: 'ithesandbox', access_token_hash: sha512('') })
  const show = async (envs) => (await own.start({ process: { cmd: 'sh', args: ['-c', 'echo $FOO $E2B_SANDBOX_ID $HOME'], envs } })).stdout
  assert.equal((await own.init({ envVars: { FOO: 'bar', E2B_SANDBOX_ID: 'evil' } })).status, 204)
  assert.equal(await show(), `bar ithesandbox ${HOME}\n`)
  assert.equal(await show({ FOO: 'baz', E2B_SANDBOX_ID: 'mine', HOME: '/x' }), 'baz mine /x\n')
  assert.equal(await show(), `bar ithesandbox ${HOME}\n`)
})

test('E128: the groups of the user', async () => {
  assert.equal((await run('id -G; id -g; id -u')).stdout, '1000 27\n1000\n1000\n')
  assert.equal((await run('id -G', { headers: basic('bob') })).stdout, '1001\n')
})

test('E129: priorities and umask; E130: only three descriptors', async () => {
  const r = await run('cat /proc/self/oom_score_adj; nice; umask; ionice; ls /proc/self/fd; trap; grep -E "^Sig(Blk|Ign|Cgt)" /proc/$$/status')
  const lines = r.stdout.trim().split('\n')
  assert.deepEqual(lines.slice(0, 4), ['100', '0', '0022', 'best-effort: prio 4'])
  assert.deepEqual(lines.slice(4, 8), ['0', '1', '2', '3']) // 3 is the directory that ls reads
  assert.match(r.stdout, /SigBlk:\s0+\nSigIgn:\s0+\n/)
})

test('a process keeps the owner of its files', async () => {
  const dir = scratch('owned')
  await run(`touch ${dir}/f`)
  assert.equal(fs.statSync(dir + '/f').uid, USER.uid)
})
