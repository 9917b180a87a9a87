// Step semantics in a real guest (template-api 11, checklist 18.11): many checks in few builds, since a boot is what costs time.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import zlib from 'node:zlib'
import { BuildError, Sandbox, Template } from 'e2b'
import { admin, dir, eventually, image, logTo, port, request } from './lib.mjs'

let context
before(() => {
  context = fs.mkdtempSync(path.join(os.tmpdir(), 'vmon-steps-'))
  const put = (name, text, mode = 0o644) => {
    fs.mkdirSync(path.dirname(path.join(context, name)), { recursive: true })
    fs.writeFileSync(path.join(context, name), text)
    fs.chmodSync(path.join(context, name), mode)
  }
  put('a.txt', 'a', 0o640)
  put('src/one.py', 'print(1)')
  put('src/.hidden', 'dot')
  put('src/sub/run.sh', '#!/bin/sh\necho ran\n', 0o755)
  fs.mkdirSync(path.join(context, 'src/empty'))
  fs.symlinkSync('sub/run.sh', path.join(context, 'src/link'))
  put('rootfs/etc/motd', 'hello')
  put('rootfs/etc/profile.d/x.sh', 'X_FROM_PROFILE=yes; export X_FROM_PROFILE\n')
  put('rootfs/lib2/foo.sh', 'foo', 0o755)
})
after(() => fs.rmSync(context, { recursive: true, force: true }))

// Builds; the answer maps a step's number to its lines as [stream, text].
async function build(template, name, options = {}) {
  const entries = []
  const info = await Template.build(template, name, {
    cpuCount: 1, memoryMB: 512, onBuildLogs: (e) => { entries.push(e.message); logTo(name)(e) }, ...options,
  }).catch((error) => { if (options.entries) options.entries.push(...entries); throw error })
  return { ...info, entries, step: byStep(entries) }
}

function byStep(entries) {
  const steps = new Proxy([], { get: (t, k) => (t[k] ??= []) })
  for (const message of entries) {
    const m = /^\[builder (\d+)\/\d+\] \[(stdout|stderr)\]: (.*)$/s.exec(message)
    if (m) steps[m[1]].push([m[2], m[3]])
  }
  return steps
}

const texts = (lines) => lines.map(([, text]) => text)

const PEM = '-----BEGIN KEY-----\nMIIB+/=\n-----END KEY-----\n'
const BIG = `"'\\\`$(id)`.repeat(11378) // 100 KiB of what must be quoted
const ANSI = String.raw`printf '\033[38:5:82mX\377\000\303\251\n'; printf '\033[31mred\033[0m\n'; printf '\n   \nend\r\n'`
const fresh = (name) => Template().fromImage(image(`${name}:1`)).skipCache() // the data directory may be kept between runs

// busybox has no bash; in the image "bash" RUN gets a real login shell, and accounts are made by useradd.
for (const shell of ['busybox', 'bash']) {
test(`188 190 195-201 D2.26 D2.28 D2.29 D2.31: RUN, its users, its clock and network, and ENV, in ${shell}`, async () => {
  const literal = { Q: 'a"b', S: "it's", BT: '`id`', CS: '$(id)', AR: '$((1+1))', BS: 'a\\nb\\', NL: 'l1\nl2\n', PEM, BIG: BIG.slice(0, 50000), SP: ' two  words ' }
  const show = (name) => `printf %s "$${name}" | base64 | tr -d '\\n'; echo`
  const started = Date.now()
  const result = await build(fresh(shell)
    .runCmd('date +%s; cat /etc/resolv.conf; cat /proc/net/route; ip -4 addr show eth0 || true')                              // 1
    .runCmd('id -un; pwd; echo $HOME $USER $LOGNAME; echo "[$E2B_SANDBOX] [$FROM_IMAGE]"')                   // 2
    .runCmd('id -un; echo $HOME', { user: 'root' })                                                        // 3
    .runCmd('id -un; cat; cat /proc/self/oom_score_adj; umask; tty; echo direct > /dev/stderr; sleep 1000 & SHELL_VARIABLE=1') // 4
    .setEnvs({ A: '1', ...literal })                                                                       // 5
    .setEnvs({ B: 'x${A}y $NOPE|$A', C: '${A:-z}$Q', H: '$HOME', BIGGER: `$A${BIG}\${A}` }) // 6
    .setEnvs({ A: '2', PATH: '${PATH}:/my/path' })                                                         // 7
    .runCmd(['A', 'B', 'C', 'H', ...Object.keys(literal), 'BIGGER'].map(show).join('; '))                   // 8
    .runCmd('echo $PATH; echo "[$SHELL_VARIABLE]"; cat /proc/self/environ | tr "\\0" "\\n" | grep -c ^VMON; true')                                        // 9
    .setEnvs({ PATH: '/nowhere' })                                                                         // 10
    .runCmd('ls -d /etc && id -un; echo $PATH')                                                            // 11
    .setStartCmd('printf %s "$A $FROM_IMAGE" > /tmp/started; id -un > /tmp/who; sleep 100000', 'test "$A" = 2 -a -s /tmp/who'), `steps-env-${shell}`)
  const first = texts(result.step[1])
  assert.ok(Number(first[0]) * 1000 >= started - 2000 && Number(first[0]) * 1000 <= Date.now() + 2000, 'the clock before the first step')
  assert.match(first.join('\n'), /^nameserver 169\.254\.0\.22$/m)
  assert.match(first.join('\n'), /^eth0\t00000000\t1600FEA9\t/m, 'the default route')
  if (shell === 'busybox') assert.match(first.join('\n'), /inet 169\.254\.0\.21\/30/)
  assert.deepEqual(texts(result.step[2]).slice(0, 3), ['user', '/home/user', '/home/user user user'])
  assert.match(texts(result.step[2])[3], /\[yes\]$/, '199 the image\'s ENV')
  assert.deepEqual(texts(result.step[3]), ['root', '/root'])
  assert.deepEqual(texts(result.step[4]), ['user', '100', '0022', 'not a tty', 'direct'], 'no input, its own descriptors, and a daemon does not hold the step')
  const joined = texts(result.step[8]).join('') // a long line comes in pieces
  const wanted = { A: '2', B: 'x1y |1', C: '1a"b', H: '/root', ...literal, BIGGER: `1${BIG}1` }
  const encoded = Object.values(wanted).map((v) => Buffer.from(v).toString('base64')).join('')
  assert.ok(joined === encoded, `196 198 differs after ${[...encoded].findIndex((c, i) => c !== joined[i])} of ${encoded.length}: ${joined.slice(0, 200)}`)
  const nine = texts(result.step[9])
  assert.match(nine[0], /:\/my\/path(:|$)/)
  assert.match(nine[0], /\/bin/)
  assert.equal(nine[1], '[]')
  assert.equal(nine[2], '0', 'nothing of our own is left in the environment')
  assert.deepEqual(texts(result.step[11]).slice(0, 2), ['/etc', 'user'], '201 standard tools are found')
  const sandbox = await Sandbox.create(`steps-env-${shell}`, { envs: { FROM_CREATE: 'c', FROM_IMAGE: 'create' } })
  try {
    const run = async (cmd, o) => (await sandbox.commands.run(cmd, o)).stdout
    assert.equal(await run('cat /tmp/started /tmp/who'), '2 yesuser\n', '196 the start command sees the build env')
    assert.equal(await run('echo "[$A][$Q]"; id -un; pwd'), '[][]\nuser\n/home/user\n', '196 a sandbox does not')
    assert.equal(await run('echo $FROM_IMAGE $FROM_CREATE'), 'create c\n', 'D2.28 create wins over the image')
    assert.equal(await run('echo $FROM_IMAGE', { envs: { FROM_IMAGE: 'command' } }), 'command\n', 'D2.28 the command wins over both')
  } finally { await sandbox.kill() }
})

test(`191-195: WORKDIR and USER; 202, D7.92: output whole and in order, in ${shell}`, async () => {
  const owner = (...paths) => `stat -c '%U:%G %n' ${paths.join(' ')}`
  const result = await build(fresh(shell)
    .setWorkdir('/app')                                                                     // 1
    .runCmd(`pwd; ${owner('/app')}`)                                                        // 2
    .setWorkdir('a/b')                                                                      // 3
    .runCmd('mkdir -p /shared/own', { user: 'root' })                                       // 4
    .setWorkdir('/etc')                                                                     // 5
    .runCmd(`pwd; ${owner('/etc', '/app/a', '/app/a/b')}`)                                  // 6
    .setWorkdir('/shared/own/new/../deep/er/')                                              // 7
    .runCmd(`pwd; ${owner('/shared', '/shared/own', '/shared/own/new', '/shared/own/deep', '/shared/own/deep/er')}`) // 8
    .setWorkdir('$HOME')                                                                    // 9
    .runCmd('pwd; id -un', { user: 'root' })                                                // 10
    .setWorkdir("/it's a \"dir\" $(id)`id`")                                                // 11
    .runCmd('pwd')                                                                          // 12
    .setUser('bob')                                                                         // 13
    .setWorkdir('/srv/bob')                                                                 // 14
    .runCmd(`id -un; echo $HOME; pwd; ${owner('/home/bob', '/srv/bob')}; grep ^bob: /etc/passwd | cut -d: -f7`) // 15
    .setUser('65534')                                                                       // 16
    .runCmd('id -un')                                                                       // 17
    .setUser('bob:bob')                                                                     // 18
    .runCmd('id -un; head -c 150000 /dev/zero | tr "\\0" x; printf "  \\n"; for i in 1 2 3; do echo out$i; done; printf "no newline"') // 19
    .runCmd(ANSI)                                                                         // 20
    .runCmd('for i in $(seq 1 200); do echo o$i; echo e$i >&2; done')                        // 21
    .runCmd('head -c 1048576 /dev/zero | tr "\\0" y; echo; seq 1 2000; seq 1 2000 >&2'), `steps-places-${shell}`) // 22
  const s = (n) => texts(result.step[n])
  assert.deepEqual(s(2), ['/app', 'user:user /app'])
  assert.deepEqual(s(6), ['/etc', 'root:root /etc', 'user:user /app/a', 'user:user /app/a/b'])
  assert.deepEqual(s(8), ['/shared/own/deep/er', 'root:root /shared', 'root:root /shared/own', 'user:user /shared/own/new', 'user:user /shared/own/deep', 'user:user /shared/own/deep/er'])
  assert.deepEqual(s(10), ['/root', 'root'])
  assert.deepEqual(s(12), ["/it's a \"dir\" $(id)`id`"])
  assert.deepEqual(s(15), ['bob', '/home/bob', '/srv/bob', 'bob:bob /home/bob', 'bob:bob /srv/bob', shell === 'bash' ? '/bin/bash' : '/bin/sh'])
  assert.deepEqual(s(17), ['nobody'])
  assert.equal(s(19)[0], 'bob')
  assert.ok(s(19).slice(1, -4).join('') === 'x'.repeat(150000), '202 a long line')
  assert.deepEqual(s(19).slice(-4), ['out1', 'out2', 'out3', 'no newline'])
  assert.deepEqual(s(20), ['X\ufffd\ufffdé', 'red', 'end'], 'the SDK takes the colours out')
  assert.deepEqual(s(21), Array.from({ length: 400 }, (_, i) => (i % 2 ? 'e' : 'o') + ((i >> 1) + 1)), 'both streams in the order of the writes')
  const out = result.step[22].filter(([stream]) => stream === 'stdout').map(([, t]) => t)
  assert.ok(out.slice(0, -2000).join('') === 'y'.repeat(1048576), 'D7.92 a line of 1 MiB')
  assert.deepEqual(out.slice(-2000), Array.from({ length: 2000 }, (_, i) => String(i + 1)))
  assert.deepEqual(texts(result.step[22].filter(([stream]) => stream === 'stderr')), Array.from({ length: 2000 }, (_, i) => String(i + 1)))
  const sandbox = await Sandbox.create(`steps-places-${shell}`)
  try {
    assert.equal((await sandbox.commands.run('id -un; pwd')).stdout, 'bob\n/srv/bob\n', '191, 192 the defaults of sandboxes')
  } finally { await sandbox.kill() }
})
}

test('203-213 D1.1 D1.2 D1.4 D1.5 D1.7 D1.13 D1.14 D1.16 D1.17: COPY in the guest', async () => {
  const template = Template({ fileContextPath: context }).fromImage(image('busybox:1')).skipCache()
    .runCmd('mkdir -p /usr/lib2 /full/sub /opt; ln -s usr/lib2 /lib2; echo old > /full/one.py; echo keep > /full/keep; mkdir /locked; chmod 555 /locked; ln -s /full /opt/link; touch /pointed; ln -s /pointed /full/link', { user: 'root' }) // 1
    .copy('a.txt', '/app/')                               // 2
    .copy('a.txt', '/deep/er/b.txt')                      // 3
    .copy('a.txt', '/etc')                                // 4
    .copy('src', '/app')                                  // 5
    .copy('a.txt', 'relative')                            // 6  D1.5: /home/user/relative
    .setWorkdir('/w')                                     // 7
    .copy('src/*.py', 'lib/')                             // 8
    .copy('.', '/whole')                                  // 9
    .copy('src', '/full')                                 // 10
    .copy('rootfs/', '/')                                 // 11
    .copy('src', '/opt/link/d1/d2/', { user: 'nobody:nogroup', mode: 0o755 }) // 12
    .copy('a.txt', '/tmp/foo')                            // 13
    .copy('src', '/locked', { gzip: false })              // 14
    .copy('src/link', '/linked', { user: 'root', mode: 0o600 }) // 15
    .copy('a.txt', '/run/lost')                           // 16: in memory
    .runCmd(`cd /; stat -c '%U:%G %a %n' app/a.txt deep/er deep/er/b.txt etc/a.txt app/one.py app/.hidden app/empty app/sub/run.sh home/user/relative w/lib/one.py whole/src/.hidden full/one.py full/sub/run.sh full/d1 full/d1/d2 full/d1/d2/sub full/d1/d2/one.py tmp tmp/foo locked locked/one.py lib2/foo.sh pointed
      cat full/keep full/one.py etc/motd pointed; readlink lib2; readlink opt/link; readlink full/link; readlink app/link; readlink linked; stat -c '%U %F' linked; ls app/src 2>&1; app/link; ls -A app/empty | wc -l; echo $X_FROM_PROFILE; ls -a / | grep -c vmon-copy; true`, { user: 'root' }) // 17
  const result = await build(template, 'steps-copy')
  assert.deepEqual(texts(result.step[17]), [
    'user:user 640 app/a.txt', 'root:root 755 deep/er', 'user:user 640 deep/er/b.txt', 'user:user 640 etc/a.txt', 'user:user 644 app/one.py',
    'user:user 644 app/.hidden', 'user:user 755 app/empty', 'user:user 755 app/sub/run.sh', 'user:user 640 home/user/relative',
    'user:user 644 w/lib/one.py', 'user:user 644 whole/src/.hidden', 'user:user 644 full/one.py', 'user:user 755 full/sub/run.sh',
    'root:root 755 full/d1', 'nobody:nogroup 755 full/d1/d2', 'nobody:nogroup 755 full/d1/d2/sub', 'nobody:nogroup 755 full/d1/d2/one.py',
    'root:root 1777 tmp', 'user:user 640 tmp/foo', 'root:root 555 locked', 'user:user 644 locked/one.py', 'user:user 755 lib2/foo.sh',
    'root:root 644 pointed', 'keep', 'print(1)hellousr/lib2', '/full', 'sub/run.sh', 'sub/run.sh', 'sub/run.sh', 'root symbolic link',
    'ls: app/src: No such file or directory', 'ran', '0', 'yes', '0'])
  assert.ok(result.entries.some((e) => /^COPY a\.txt \/run\/lost: .*not part of the template/.test(e)))
})

test('D2.22 D2.23: a Dockerfile keeps its WORKDIR, USER and exec-form CMD', async () => {
  const template = Template({ fileContextPath: context }).skipCache().fromDockerfile(`FROM ${image('busybox:1')}
ARG FIRST=1
ENV SECOND=2 QUOTED="two words"
ENV LONE="two words"
ENV BASE=/opt/base WHO=nobody
WORKDIR /srv
COPY --chown=nobody:nogroup a.txt ./
RUN echo "$FIRST $SECOND" && env | grep -c LONE && \\
    id -un && pwd
RUN stat -c '%U:%G %a' /srv/a.txt
COPY --chown=$WHO:nogroup a.txt $BASE/sub/
RUN stat -c '%U:%G %n' $BASE/sub/*
WORKDIR \${BASE}/work
RUN pwd
WORKDIR /srv
USER nobody
RUN id -un; pwd
CMD ["sleep","98765"]
`)
  const result = await build(template, 'steps-dockerfile')
  const said = Object.values(result.step).flatMap(texts)
  assert.deepEqual(said, ['1 2', '1', 'root', '/srv', 'nobody:nogroup 640', 'nobody:nogroup /opt/base/sub/a.txt', '/opt/base/work', 'nobody', '/srv'])
  const sandbox = await Sandbox.create('steps-dockerfile')
  try {
    assert.equal((await sandbox.commands.run('id -un; pwd')).stdout, 'nobody\n/srv\n')
    assert.match((await sandbox.commands.run('ps')).stdout, /nobody.* sleep 98765$/m)
  } finally { await sandbox.kill() }
})

// A build by hand, for what the SDK does not send. Answers {status, reason, entries}.
async function rawBuild(name, body, { userAgent, archives = {} } = {}) {
  const { json: made } = await request('POST', '/v3/templates', { body: { name, cpuCount: 1, memoryMB: 512 } })
  for (const [hash, bytes] of Object.entries(archives)) {
    const link = (await request('GET', `/templates/${made.templateID}/files/${hash}`)).json
    const url = new URL(link.url)
    const put = await fetch(`http://127.0.0.1:${port}${url.pathname}${url.search}`, { method: 'PUT', body: bytes })
    assert.equal(put.status, 200)
  }
  const trigger = await request('POST', `/v2/templates/${made.templateID}/builds/${made.buildID}`, {
    body: { fromImage: image('busybox:1'), ...body }, headers: userAgent ? { 'User-Agent': userAgent } : {},
  })
  assert.equal(trigger.status, 202, trigger.body)
  const entries = []
  const end = await eventually(async () => {
    const { json } = await request('GET', `/templates/${made.templateID}/builds/${made.buildID}/status?logsOffset=${entries.length}`)
    entries.push(...json.logEntries.map((e) => e.message))
    return (json.status === 'ready' || json.status === 'error') && json.logEntries.length === 0 && json
  }, 300)
  fs.appendFileSync(path.join(dir, `build-${name}.log`), `${entries.join('\n')}\n${JSON.stringify(end.reason)}\n`)
  return { ...end, entries, step: byStep(entries) }
}

const run = (command, ...user) => ({ type: 'RUN', args: [command, ...user], force: true })

test('188, 90, 101: version 2.0 runs as root; step types in any case', async () => {
  const old = await rawBuild('steps-old', { steps: [{ type: 'run', args: ['id -un; pwd'], force: true }, { type: 'Arg', args: ['A', '1'] }, { type: 'rUN', args: ['echo $A', ''] }, run(ANSI)] },
    { userAgent: 'e2b-js-sdk/2.2.0' })
  assert.equal(old.status, 'ready', JSON.stringify(old.reason))
  assert.deepEqual([texts(old.step[1]), texts(old.step[3])], [['root', '/root'], ['1']])
  assert.deepEqual(texts(old.step[4]), ['\u001b[38:5:82mX\ufffd\ufffdé', '\u001b[31mred\u001b[0m', 'end'], 'D7.92 control sequences pass')
})

const GOOD = '60'.repeat(32)

// One failing build each; two at a time, as the server does by default.
const failures = [
  ['status', [run('true'), run('echo before; exit 3')], /^failed to run command 'echo before; exit 3': exit status 3$/, '2'],
  ['killed', [run('kill -9 $$')], /^failed to run command 'kill -9 \$\$': signal: killed$/, '1'],
  ['terminated', [run('kill -15 $$')], /: signal: terminated$/, '1'],
  ['not-found', [run('no-such-command')], /: exit status 127$/, '1'],
  ['no-cwd', [{ type: 'WORKDIR', args: ['/gone'] }, run('rmdir /gone', 'root'), run('pwd')], /cwd '\/gone' does not exist/, '3'],
  ['cwd-denied', [run('mkdir -m 700 /secret', 'root'), { type: 'WORKDIR', args: ['/secret'] }, run('pwd')], /chdir \/secret: Permission denied/, '3'],
  ['no-user', [run('id', 'nobody-such')], /nobody-such/, '1'],
  ['bad-user', [{ type: 'USER', args: ['../x'] }], /invalid user name '\.\.\/x'/, '1'],
  ['workdir-file', [{ type: 'WORKDIR', args: ['/etc/passwd/x'] }], /directory '\/etc\/passwd\/x' could not be created/, '1'],
  ['env-fails', [{ type: 'ENV', args: ['A', '${NOPE:?}'] }], /ENV A: the value could not be expanded/, '1'],
  ['env-large', Array.from('ABC', (name) => ({ type: 'ENV', args: [name, 'x'.repeat(100000)] })), /^ENV C: the environment of the build is now 3\d+ bytes, at most/, '3'],
  ['copy-nowhere', [{ type: 'COPY', args: ['d', '$NOPE', '', ''], filesHash: GOOD }], /^COPY d \$NOPE: .*is empty once its variables are expanded/, '1'],
  ['copy-no-group', [{ type: 'COPY', args: ['d', '/out', 'nobody', ''], filesHash: GOOD }], /^COPY d \/out: .*group 'nobody' does not exist/, '1'],
  ['copy-no-source', [{ type: 'COPY', args: ['e', '/out', '', ''], filesHash: GOOD }], /^COPY e \/out: .*'e' is not in the uploaded files/, '1'],
  ['95-missing', [run('true'), { type: 'COPY', args: ['a', '/b', '', ''], filesHash: '5e'.repeat(32) }], /^COPY a: the files \(hash 5e5e.*were not uploaded/, '2'],
  ['panic', [run('echo going; echo c > /proc/sysrq-trigger; sleep 1000', 'root')], /build VM has ended|guest/, '1'],
]

test('RUN and the other steps fail with one clear reason, their own step, and once (D7.85)', async (t) => {
  for (let i = 0; i < failures.length; i += 2)
    await Promise.all(failures.slice(i, i + 2).map(async ([name, steps, reason, step]) => {
      const r = await rawBuild(`fails-${name}`, { steps }, { archives: name.startsWith('copy') ? { [GOOD]: tar([['d/ok', '0', '', 'content']]) } : {} })
      await t.test(name, () => {
        assert.equal(r.status, 'error')
        assert.match(r.reason.message, reason)
        assert.doesNotMatch(r.reason.message, /\n/)
        assert.equal(r.reason.step, step)
        assert.equal(r.entries.filter((e) => /^Build (failed|finished)/.test(e)).length, 1, r.entries.join('\n'))
        if (name.startsWith('95')) assert.equal(r.entries.length, 1, 'found at the trigger, before the first phase')
      })
    }))
})

test('D7.85: exit 3 is never a success', async () => {
  for (let i = 0; i < 10; i += 2)
    for (const r of await Promise.all([i, i + 1].map((n) => rawBuild(`exit-three-${n}`, { steps: [run(`echo ${n}; exit 3`)] })))) {
      assert.equal(r.status, 'error')
      assert.match(r.reason.message, /: exit status 3$/)
    }
})

// A tar of [name, type, linkname, content]; checks nothing.
function tar(entries, end = true) {
  const blocks = entries.map(([name, type = '0', link = '', content = '']) => {
    const h = Buffer.alloc(512)
    h.write(name, 0, 100); h.write('0000644\0', 100); h.write('0000000\0', 108); h.write('0000000\0', 116)
    h.write(content.length.toString(8).padStart(11, '0') + '\0', 124); h.write('00000000000\0', 136)
    h.write('        ', 148); h.write(type, 156); h.write(link, 157, 100); h.write('ustar\x0000', 257)
    h.write(h.reduce((a, b) => a + b, 0).toString(8).padStart(6, '0') + '\0 ', 148)
    return Buffer.concat([h, Buffer.from(content), Buffer.alloc((512 - content.length % 512) % 512)])
  })
  return Buffer.concat([...blocks, Buffer.alloc(end ? 1024 : 0)])
}

test('214 D1.8 D1.20: hostile and cut archives fail their step and leave nothing', async (t) => {
  const good = ['d/ok', '0', '', 'content']
  const cases = {
    'dot-dot': [tar([good, ['../../etc/cron.d/x']]), /absolute, holds '\.\.'/],
    absolute: [tar([good, ['/etc/evil']]), /absolute, holds '\.\.'/],
    device: [tar([good, ['d/dev', '3']]), /not allowed/],
    nothing: [Buffer.alloc(0), /it is empty/],
    cut: [zlib.gzipSync(tar([good])).subarray(0, -1), /incomplete or damaged/],
  }
  const names = Object.keys(cases)
  for (let i = 0; i < names.length; i += 2)
    await Promise.all(names.slice(i, i + 2).map(async (name) => {
      const hash = Buffer.from(name.padEnd(32, '.')).toString('hex')
      const r = await rawBuild(`archive-${name}`, { steps: [{ type: 'COPY', args: ['d', '/out', '', ''], filesHash: hash }] }, { archives: { [hash]: cases[name][0] } })
      await t.test(name, () => {
        assert.equal(r.status, 'error')
        assert.match(r.reason.message, cases[name][1])
        assert.match(r.reason.message, /^COPY d \/out: /)
        assert.equal(r.reason.step, '1')
      })
    }))
})

test('D6.80: a full disk and no free inode are one clear line', async (t) => {
  admin('set-limits', 'default', '--max-disk-mb', '300')
  try {
    const bomb = 'ab'.repeat(32)
    const cases = {
      blocks: [{ steps: [run('dd if=/dev/zero of=/big bs=1M 2>/dev/null', 'root')] }, /exit status 1 \(the template's disk of 300 MB is full/],
      inodes: [{ steps: [run('mkdir /many && cd /many && seq 1 100000 | xargs touch 2>/dev/null', 'root')] }, /exit status \d+ \(the template's disk of 300 MB has no free inode left/],
      copy: [{ steps: [{ type: 'COPY', args: ['.', '/out', '', ''], filesHash: bomb }] }, /^COPY \. \/out: .*(the template's disk is full|do not fit)/],
    }
    const archive = zlib.gzipSync(Buffer.concat([tar([['zeros', '0', '', '\0'.repeat(400 << 20)]])]), { level: 1 })
    for (const [name, [body, reason]] of Object.entries(cases)) {
      const r = await rawBuild(`full-${name}`, body, name === 'copy' ? { archives: { [bomb]: archive } } : {})
      await t.test(name, () => {
        assert.equal(r.status, 'error')
        assert.match(r.reason.message, reason)
        assert.doesNotMatch(r.reason.message, /\n/)
      })
    }
    assert.equal((await rawBuild('full-after', { steps: [run('df /; df -i /')] })).status, 'ready', 'the next build has its room')
  } finally {
    admin('set-limits', 'default', '--max-disk-mb', '10240')
  }
})
