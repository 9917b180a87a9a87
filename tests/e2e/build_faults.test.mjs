// Bad input of the host's making: each ends in one clear line that names the mend, in the build's reason, and never in a time-out.
// The servers here are the test's own: with a data directory on a small tmpfs, and with kits that were damaged on purpose.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { BuildError, Template } from 'e2b'
import { dir, image } from './lib.mjs'
import { startServer } from './server.mjs'

const root = path.join(dir, 'faults')
const kit = fs.realpathSync(path.join(process.env.VMON_E2E_KIT, process.arch === 'arm64' ? 'aarch64' : 'x86_64', 'current'))
const undo = []

before(() => { fs.rmSync(root, { recursive: true, force: true }); fs.mkdirSync(root, { recursive: true }) })
after(async () => {
  for (const step of undo.reverse()) await step()
  fs.rmSync(root, { recursive: true, force: true })
})

// A server of its own; answers what Template.build() needs to reach it, its log and an `admin` command.
async function server(name, kitDir, options) {
  const s = await startServer(root, name, { kit: kitDir, ...options })
  undo.push(s.stop)
  return s
}

// A copy of the kit in use, as if it had been built at the new place; `damage` gets its directory.
function kitCopy(name, damage) {
  const arch = path.join(root, name, path.basename(path.dirname(kit))), copy = path.join(arch, path.basename(kit))
  fs.mkdirSync(arch, { recursive: true })
  execFileSync('sh', ['-c', 'cp -al "$1" "$2" 2>/dev/null || { rm -rf "$2"; cp -a "$1" "$2"; }', 'sh', kit, copy])
  const description = JSON.parse(fs.readFileSync(path.join(kit, 'kit.json'), 'utf8'))
  replace(path.join(copy, 'kit.json'), JSON.stringify({ ...description, path: copy }))
  damage(copy)
  fs.symlinkSync(path.basename(kit), path.join(arch, 'current'))
  return path.join(root, name)
}

function replace(file, content) { // the copy's files are hard links
  fs.rmSync(file)
  fs.writeFileSync(file, content)
}

const busybox = () => Template().fromImage(image('busybox:1'))

// The build's failure: one line with all of `patterns`.
async function fails(server, template, ...patterns) {
  let reason
  await assert.rejects(Template.build(template, 'faulty', { cpuCount: 1, memoryMB: 512, ...server.connection }), (error) => {
    reason = error.message
    for (const pattern of patterns) assert.match(error.message, pattern)
    assert.doesNotMatch(error.message.trim(), /\n/)
    return true
  })
  return reason
}

const hangGuard = { timeout: 240_000 } // below the 300 s that a guest may take to boot

test('a registry that cannot be reached', hangGuard, async () => {
  const s = await server('registry', process.env.VMON_E2E_KIT)
  await fails(s, Template().fromImage('127.0.0.1:1/vmon/x:1'), /127\.0\.0\.1:1/, /check that the registry runs and can be reached/)
  await fails(s, Template().fromImage('no-such-host.invalid/vmon/x:1'), /no-such-host\.invalid/, /check the name and the node's DNS/)
})

test('no kit: said at the start and to who builds; found without a restart', hangGuard, async () => {
  const kitDir = path.join(root, 'late')
  const s = await server('no-kit', kitDir)
  assert.match(s.log(), /nothing can be built or started here: no guest kit prepared at .*; run vmon kit/)
  await fails(s, busybox(), /no guest kit prepared at/, /run vmon kit/)
  kitCopy('late', () => {})
  await Template.build(busybox(), 'late', { cpuCount: 1, memoryMB: 512, ...s.connection })
})

test('QEMU is missing from the kit', hangGuard, async () => {
  const s = await server('no-qemu', kitCopy('no-qemu-kit', (copy) => {
    for (const name of fs.readdirSync(path.join(copy, 'qemu/bin'))) if (name.startsWith('qemu-system')) fs.rmSync(path.join(copy, 'qemu/bin', name))
  }))
  await fails(s, busybox(), /qemu\/bin\/qemu-system-\w+ is missing; run vmon kit/)
})

test('a kernel that is none', hangGuard, async () => {
  const s = await server('no-kernel', kitCopy('no-kernel-kit', (copy) => replace(path.join(copy, 'vmlinuz'), Buffer.alloc(1 << 20, 'garbage '))))
  await fails(s, busybox(), /starting the build VM/, /vmon kit/, /QEMU ended|did not come up/)
})

test('a kernel that panics', hangGuard, async () => {
  const s = await server('panic', kitCopy('panic-kit', (copy) => replace(path.join(copy, 'initramfs'), Buffer.alloc(4096, 'x'))))
  await fails(s, busybox(), /the kernel of kit \w+ did not boot/, /vmon kit/, /its console ends with: .*Kernel panic/)
})

const onTmpfs = async (name, megabytes) => {
  const data = path.join(root, name, 'data')
  fs.mkdirSync(data, { recursive: true })
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'none', data])
  undo.push(() => execFileSync('umount', [data]))
  const s = await server(name, process.env.VMON_E2E_KIT, { data })
  s.admin('set-limits', 'default', '--max-disk-mb', '512')
  return s
}

test('a disk that is full before the image is there', { ...hangGuard, skip: process.getuid() !== 0 }, async () => {
  const s = await onTmpfs('small', 3)
  const reason = await fails(s, busybox(), /only \d MB are free there; make room or move the data directory/)
  assert.ok(reason.includes(s.data))
})

test('a disk that the guest fills', { ...hangGuard, skip: process.getuid() !== 0 }, async () => {
  const s = await onTmpfs('filled', 96)
  await fails(s, busybox().runCmd('dd if=/dev/urandom of=/home/user/fill bs=1M count=200'), /the disk of this node is full/,
    /there was no room for what it wrote to its disk/)
  const { bavail, bsize } = fs.statfsSync(s.data)
  assert.ok(bavail * bsize > 60 << 20, 'the failed build gave its space back')
})
