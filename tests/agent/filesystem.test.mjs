// The filesystem service (envd contract 2.2 and 3.1, checklist 133 to 162).
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import { before, test } from 'node:test'
import { HOME, USER, basic, init, ownAgent, refused, scratch, unary } from './lib.mjs'

before(() => init({ defaultUser: 'user' }))
const call = (method, body, headers) => unary('filesystem.Filesystem/' + method, body, headers)
const stat = async (path, headers) => (await call('Stat', { path }, headers)).json.entry
const paths = async (path, depth) => ((await call('ListDir', { path, depth })).json.entries ?? []).map((e) => e.path.slice(path.length + 1))
const owner = (path) => { const s = fs.lstatSync(path); return [s.uid, s.gid] }
const mine = [USER.uid, USER.gid]

test('E133: a file; E134: a directory; E145: an owner without a name', async () => {
  const dir = scratch('stat')
  fs.writeFileSync(dir + '/f', 'hello', { mode: 0o644 })
  fs.chownSync(dir + '/f', USER.uid, USER.gid)
  fs.utimesSync(dir + '/f', 1, 1700000000.123456)
  const e = await stat(dir + '/f')
  assert.match(e.modifiedTime, /^2023-11-14T22:13:20\.\d{3,9}Z$/)
  delete e.modifiedTime
  assert.deepEqual(e, { name: 'f', type: 'FILE_TYPE_FILE', path: dir + '/f', size: '5', mode: 420, permissions: '-rw-r--r--', owner: 'user', group: 'user' })
  fs.chmodSync(dir, 0o755)
  const d = await stat(dir)
  assert.deepEqual([d.type, d.mode, d.permissions, d.name], ['FILE_TYPE_DIRECTORY', 493, 'drwxr-xr-x', 'stat'])
  fs.chownSync(dir + '/f', 4242, 4243)
  const o = await stat(dir + '/f')
  assert.deepEqual([o.owner, o.group], ['4242', '4243'])
  fs.writeFileSync(dir + '/empty', '')
  assert.equal((await stat(dir + '/empty')).size, undefined)
  fs.utimesSync(dir + '/empty', 0, 1700000000)
  assert.equal((await stat(dir + '/empty')).modifiedTime, '2023-11-14T22:13:20Z')
})

test('E135: a link to a file; E136: a chain; E137: a broken and a cyclic one', async () => {
  const dir = scratch('links')
  fs.writeFileSync(dir + '/f', 'x', { mode: 0o600 })
  for (const [name, target] of [['l', 'f'], ['l2', 'l'], ['l3', dir + '/l2'], ['broken', 'none'], ['c1', 'c2'], ['c2', 'c1']]) fs.symlinkSync(target, `${dir}/${name}`)
  for (const name of ['l', 'l2', 'l3']) {
    const e = await stat(`${dir}/${name}`)
    assert.deepEqual([e.type, e.mode, e.permissions, e.symlinkTarget], ['FILE_TYPE_FILE', 0o600, 'Lrwxrwxrwx', dir + '/f'])
    assert.equal(e.size, String(fs.lstatSync(`${dir}/${name}`).size))
  }
  for (const name of ['broken', 'c1']) {
    const r = await call('Stat', { path: `${dir}/${name}` })
    assert.deepEqual([r.status, r.json.entry.type, r.json.entry.mode, r.json.entry.symlinkTarget], [200, undefined, undefined, `${dir}/${name}`])
  }
})

test('E138: devices, pipes and bits of modes', async () => {
  const dir = scratch('special')
  const show = async (path) => { const e = await stat(path); return [e.type, e.permissions] }
  assert.deepEqual(await show('/dev/null'), [undefined, 'Dcrw-rw-rw-'])
  assert.deepEqual(await show('/tmp'), ['FILE_TYPE_DIRECTORY', 'dtrwxrwxrwx'])
  execFileSync('mkfifo', ['-m', '644', dir + '/p'])
  assert.deepEqual(await show(dir + '/p'), [undefined, 'prw-r--r--'])
  execFileSync('mknod', ['-m', '660', dir + '/b', 'b', '7', '0'])
  assert.deepEqual(await show(dir + '/b'), [undefined, 'Drw-rw----'])
  fs.writeFileSync(dir + '/s', '')
  for (const [mode, text] of [[0o4755, 'urwxr-xr-x'], [0o2755, 'grwxr-xr-x'], [0o6755, 'ugrwxr-xr-x'], [0o1644, 'trw-r--r--'], [0, '----------']]) {
    fs.chmodSync(dir + '/s', mode)
    const e = await stat(dir + '/s')
    assert.deepEqual([e.permissions, e.mode ?? 0], [text, mode & 0o777])
  }
})

test('E139: nothing there; E140: below a file', async () => {
  refused(await call('Stat', { path: '/home/user/none' }), 404, 'not_found', /^file not found: lstat \/home\/user\/none: no such file or directory$/)
  refused(await call('Stat', { path: '/etc/passwd/x' }), 500, 'internal', /^error getting file info: /)
})

test('E141: relative to home; E142: tildes; E143: nothing', async () => {
  scratch('rel')
  assert.equal((await stat('rel')).path, HOME + '/rel')
  assert.equal((await stat('rel/../rel/.')).path, HOME + '/rel')
  fs.writeFileSync('/root/vmon-test.txt', '')
  try {
    assert.equal((await stat('vmon-test.txt', basic('root'))).path, '/root/vmon-test.txt')
  } finally { fs.rmSync('/root/vmon-test.txt') }
  assert.equal((await stat('~')).path, HOME)
  assert.equal((await stat('~/rel')).path, HOME + '/rel')
  assert.equal((await stat('/home//user/./rel')).path, '/home//user/./rel')
  refused(await call('Stat', { path: '~bob' }), 400, 'invalid_argument', /^failed to expand path '~bob' for user 'user': cannot expand user-specific home dir$/)
  assert.equal((await stat('')).path, HOME)
  const own = await ownAgent()
  await own.init({ defaultWorkdir: '/usr' })
  assert.equal((await own.unary('filesystem.Filesystem/Stat', { path: '' })).json.entry.path, '/usr')
  assert.equal((await own.unary('filesystem.Filesystem/Stat', { path: 'rel' })).json.entry.path, HOME + '/rel')
})

test('E144: attributes', async (t) => {
  const f = scratch('attributes') + '/f'
  fs.writeFileSync(f, '')
  const set = (name, value) => execFileSync('setfattr', ['-n', name, '-v', value, f])
  set('user.e2b.k', 'v')
  set('user.e2b.two', 'é')
  set('user.other', 'x')
  set('user.e2b.bad', '0xff')
  assert.deepEqual((await stat(f)).metadata, { k: 'v', two: 'é' })
  fs.symlinkSync(f, f + '.link')
  assert.deepEqual((await stat(f + '.link')).metadata, { k: 'v', two: 'é' })
})

test('E146: directories and their parents; E147: what is there already; E148: as root', async () => {
  const dir = scratch('mk')
  const r = await call('MakeDir', { path: 'mk/a/b/c' })
  assert.deepEqual([r.status, r.json.entry.path, r.json.entry.type], [200, dir + '/a/b/c', 'FILE_TYPE_DIRECTORY'])
  for (const p of ['a', 'a/b', 'a/b/c']) {
    assert.deepEqual(owner(`${dir}/${p}`), mine)
    assert.equal(fs.statSync(`${dir}/${p}`).mode & 0o7777, 0o755)
  }
  fs.writeFileSync(dir + '/f', '')
  fs.symlinkSync('a', dir + '/link')
  for (const p of ['a', 'link']) refused(await call('MakeDir', { path: `${dir}/${p}` }), 409, 'already_exists', new RegExp(`^directory already exists: ${dir}/${p}$`))
  refused(await call('MakeDir', { path: dir + '/f' }), 400, 'invalid_argument', new RegExp(`^path already exists but it is not a directory: ${dir}/f$`))
  refused(await call('MakeDir', { path: dir + '/f/x' }), 500, 'internal')
  await call('MakeDir', { path: dir + '/r/s' }, basic('root'))
  assert.deepEqual([owner(dir + '/r'), owner(dir + '/r/s')], [[0, 0], [0, 0]])
})

test('E149: two at once', async () => {
  const dir = scratch('race')
  for (let i = 0; i < 50; i++) {
    const all = await Promise.all([1, 2, 3, 4].map(() => call('MakeDir', { path: `${dir}/${i}/a/b/c/d` })))
    const statuses = all.map((r) => r.status)
    assert.ok(statuses.includes(200) && statuses.every((s) => s === 200 || s === 409), statuses.join())
    for (const p of ['', '/a', '/a/b', '/a/b/c', '/a/b/c/d']) assert.deepEqual(owner(`${dir}/${i}${p}`), mine)
  }
})

test('E150: a move; E151: of nothing; E152: onto something; E153: of a link', async () => {
  const dir = scratch('mv')
  const move = (source, destination) => call('Move', { source: `${dir}/${source}`, destination: `${dir}/${destination}` })
  fs.writeFileSync(dir + '/f', 'content')
  fs.chownSync(dir + '/f', 0, 0)
  const r = await move('f', 'x/y/g')
  assert.deepEqual([r.status, r.json.entry.path, r.json.entry.name], [200, dir + '/x/y/g', 'g'])
  assert.deepEqual([fs.existsSync(dir + '/f'), fs.readFileSync(dir + '/x/y/g', 'utf8')], [false, 'content'])
  assert.deepEqual([owner(dir + '/x'), owner(dir + '/x/y'), owner(dir + '/x/y/g')], [mine, mine, [0, 0]])
  refused(await move('none', 'z'), 404, 'not_found', /^source file not found/)
  fs.writeFileSync(dir + '/new', 'new')
  assert.equal((await move('new', 'x/y/g')).status, 200)
  assert.equal(fs.readFileSync(dir + '/x/y/g', 'utf8'), 'new')
  fs.mkdirSync(dir + '/empty')
  fs.mkdirSync(dir + '/other')
  for (const source of ['x/y/g', 'other']) refused(await move(source, 'empty'), 500, 'internal', /file exists/i)
  assert.ok(fs.existsSync(dir + '/other') && fs.existsSync(dir + '/x/y/g'))
  fs.symlinkSync('x/y/g', dir + '/link')
  const l = await move('link', 'moved')
  assert.equal(l.json.entry.permissions, 'Lrwxrwxrwx')
  assert.deepEqual([fs.readlinkSync(dir + '/moved'), fs.readFileSync(dir + '/x/y/g', 'utf8')], ['x/y/g', 'new'])
  refused(await call('Move', { source: dir + '/moved', destination: '/dev/shm/x' }), 500, 'internal', /^error renaming: /)
})

test('E154: a listing in order; E155: hidden files, not the root itself; E158: links are not followed; E159: a pipe has no type', async () => {
  const dir = scratch('ls')
  for (const d of ['subdir1/subdir1_1/deep', 'subdir2', 'empty']) fs.mkdirSync(`${dir}/${d}`, { recursive: true })
  for (const f of ['file1.txt', '.hidden', 'subdir1/file2.txt', 'subdir2/z', 'B']) fs.writeFileSync(`${dir}/${f}`, '')
  fs.symlinkSync('subdir1', dir + '/link')
  execFileSync('mkfifo', [dir + '/pipe'])
  const one = ['.hidden', 'B', 'empty', 'file1.txt', 'link', 'pipe', 'subdir1', 'subdir2']
  for (const depth of [undefined, 0, 1]) assert.deepEqual(await paths(dir, depth), one)
  assert.deepEqual(await paths(dir, 2), ['.hidden', 'B', 'empty', 'file1.txt', 'link', 'pipe', 'subdir1', 'subdir1/file2.txt', 'subdir1/subdir1_1', 'subdir2', 'subdir2/z'])
  assert.deepEqual(await paths(dir, 3), ['.hidden', 'B', 'empty', 'file1.txt', 'link', 'pipe', 'subdir1', 'subdir1/file2.txt', 'subdir1/subdir1_1', 'subdir1/subdir1_1/deep', 'subdir2', 'subdir2/z'])
  const entries = (await call('ListDir', { path: dir })).json.entries
  assert.equal(entries.find((e) => e.name === 'pipe').type, undefined)
  assert.equal(entries.find((e) => e.name === 'link').type, 'FILE_TYPE_DIRECTORY')
  assert.equal((await call('ListDir', { path: dir + '/empty' })).body.toString(), '{}')
})

test('E156: through a link; E160: relative', async () => {
  const dir = scratch('lsl')
  fs.mkdirSync(dir + '/real/sub', { recursive: true })
  fs.writeFileSync(dir + '/real/sub/f', '')
  fs.symlinkSync('real', dir + '/via')
  const names = async (path) => (await call('ListDir', { path, depth: 2 })).json.entries.map((e) => e.path)
  assert.deepEqual(await names(dir + '/via'), [dir + '/via/sub', dir + '/via/sub/f'])
  assert.deepEqual(await names('lsl/real'), [dir + '/real/sub', dir + '/real/sub/f'])
})

test('E157: what cannot be listed', async () => {
  const dir = scratch('lsbad')
  fs.writeFileSync(dir + '/f', '')
  fs.symlinkSync('c2', dir + '/c1')
  fs.symlinkSync('c1', dir + '/c2')
  refused(await call('ListDir', { path: dir + '/none' }), 404, 'not_found', /^path not found: /)
  refused(await call('ListDir', { path: dir + '/f' }), 400, 'invalid_argument', new RegExp(`^path is not a directory: ${dir}/f$`))
  refused(await call('ListDir', { path: dir + '/c1' }), 400, 'failed_precondition', /^cyclic symlink or chain >255 links at ".*"$/)
})

test('names that are no UTF-8 are shown with the replacement character', async () => {
  const dir = scratch('names')
  fs.writeFileSync(Buffer.concat([Buffer.from(dir + '/a'), Buffer.from([0xff]), Buffer.from('b')]), '')
  assert.deepEqual(await paths(dir), ['a\ufffdb'])
})

test('E161: removals', async () => {
  const dir = scratch('rm')
  fs.mkdirSync(dir + '/tree/a/b', { recursive: true })
  for (const f of ['f', 'target', 'tree/a/b/x']) fs.writeFileSync(`${dir}/${f}`, '')
  fs.symlinkSync('target', dir + '/link')
  fs.symlinkSync('..', dir + '/tree/up')
  for (const p of ['f', 'tree', 'link', 'none', 'none/below']) {
    const r = await call('Remove', { path: `${dir}/${p}` })
    assert.deepEqual([p, r.status, r.body.toString()], [p, 200, '{}'])
  }
  assert.deepEqual(fs.readdirSync(dir), ['target'])
  refused(await call('Remove', { path: '/proc/1' }), 500, 'internal', /^error removing file or directory: /)
})

test('E162: whoever asks, the agent may', async () => {
  const dir = scratch('rmroot') + '/closed'
  fs.mkdirSync(dir, { mode: 0o700 })
  fs.writeFileSync(dir + '/f', '', { mode: 0o600 })
  assert.equal((await call('Remove', { path: dir + '/f' }, basic('user'))).status, 200)
  assert.deepEqual(fs.readdirSync(dir), [])
})
