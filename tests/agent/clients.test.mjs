// Older packages of E2B against the bare agent, in their debug mode (envd contract, checklist 267).
import assert from 'node:assert/strict'
import fs from 'node:fs'
import { createRequire } from 'node:module'
import { before, test } from 'node:test'
import { HOME, init, scratch, until } from './lib.mjs'

const require = createRequire(new URL('../e2e/package.json', import.meta.url))
const versions = Object.keys(require('./package.json').dependencies).filter((name) => /^e2b-\d/.test(name)).map((name) => name.slice(4))

before(() => init({ defaultUser: 'user' }))

test('there are older packages to test', () => assert.ok(versions.length >= 6 && versions.includes('1.0.1') && versions.includes('2.0.1')))

for (const version of versions)
  test(`E267: e2b ${version} runs, writes, reads, lists, watches and opens a terminal`, { timeout: 60000 }, async () => {
    const { Sandbox, CommandExitError } = require('e2b-' + version)
    const sandbox = await Sandbox.create()
    const dir = scratch('old-' + version)
    const r = await sandbox.commands.run('echo hi; echo err >&2; pwd', { envs: { A: '1' }, cwd: dir })
    assert.deepEqual([r.exitCode, r.stdout, r.stderr], [0, `hi\n${dir}\n`, 'err\n'])
    await assert.rejects(sandbox.commands.run('exit 3'), (e) => e instanceof CommandExitError && e.exitCode === 3)
    const events = []
    await sandbox.files.makeDir(dir + '/watched')
    const watch = await sandbox.files.watchDir(dir + '/watched', (e) => events.push(`${e.type} ${e.name}`))
    await sandbox.files.write(dir + '/watched/a.txt', 'content')
    await until(() => events.includes('create a.txt') && events.includes('write a.txt'))
    await watch.stop()
    assert.equal(fs.statSync(dir + '/watched/a.txt').uid, 1000)
    assert.equal(await sandbox.files.read(dir + '/watched/a.txt'), 'content')
    assert.deepEqual(Buffer.from(await sandbox.files.read(dir + '/watched/a.txt', { format: 'bytes' })).toString(), 'content')
    assert.deepEqual((await sandbox.files.list(dir)).map((e) => [e.name, e.type, e.path]), [['watched', 'dir', dir + '/watched']])
    assert.equal(await sandbox.files.exists(dir + '/none'), false)
    await sandbox.files.rename(dir + '/watched', dir + '/moved')
    await sandbox.files.remove(dir + '/moved')
    assert.deepEqual(fs.readdirSync(dir), [])
    const c = await sandbox.commands.run('cat', { background: true, timeoutMs: 0, ...(version.startsWith('1.') ? {} : { stdin: true }) })
    await sandbox.commands.sendStdin(c.pid, 'abc\n')
    await until(() => c.stdout === 'abc\n')
    assert.ok((await sandbox.commands.list()).some((p) => p.pid === c.pid))
    assert.equal(await sandbox.commands.kill(c.pid), true)
    let out = ''
    const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (d) => { out += Buffer.from(d) }, timeoutMs: 0, cwd: HOME })
    await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size\n'))
    await until(() => out.includes('24 80'))
    assert.equal(await sandbox.pty.kill(pty.pid), true)
  })
