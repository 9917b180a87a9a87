// The step cache is never wrong (known-failures D3; product page "Steps and the step cache"): a build that resumes from any
// layer gives what a cold one gives.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Template } from 'e2b'
import { busybox, logTo } from './lib.mjs'

// The data directory may be an earlier run's: what must be built for the first time names this run.
const run = `: ${Date.now()}`

// Builds; answers the log: what steps printed and which were CACHED, by their number.
async function build(template, name = 'cache', options = {}) {
  const lines = []
  await Template.build(template, name, { cpuCount: 1, memoryMB: 512, ...options,
    onBuildLogs: (e) => { lines.push(e.message); logTo(name)(e) } })
  return {
    lines,
    out: lines.filter((l) => l.includes('[stdout]:')).map((l) => l.replace(/^.*\[stdout\]: /, '')),
    cached: lines.filter((l) => /^CACHED \[builder/.test(l)).map((l) => Number(l.match(/builder (\d+)\//)[1])),
  }
}

// What a step may find beside its disk.
const surroundings = 'ls -A /run /run/e2b /dev/shm; cut -d" " -f2-4 /proc/mounts | sed "s/size=[0-9]*k,nr_inodes=[0-9]*,//" | sort; hostname; tail -n +2 /proc/swaps; ' +
  'for p in /proc/[0-9]*; do [ ! -e $p/exe ] || echo "$(cat $p/comm)"; done'

test('the surroundings of a step do not depend on whether the step before it was cached', async () => {
  const first = () => busybox().runCmd(`${run}; ` + 'echo x >/run/x; mkdir -p /run/d/e; echo x >/dev/shm/x; umount /dev/shm; mkdir -p "/mnt/a b"; ' +
    'mount -t tmpfs none "/mnt/a b"; mount -t tmpfs none "/mnt/a b"; echo x >"/mnt/a b/x"; mount -o bind /etc /mnt; hostname other; ' +
    'dd if=/dev/zero of=/swap bs=1024 count=256; chmod 600 /swap; mkswap /swap >/dev/null && swapon /swap; sleep 5000 </dev/null >/dev/null 2>&1 &', { user: 'root' })
    .runCmd('rm -rf /run/e2b; mount -o remount,ro /', { user: 'root' })
  const cold = await build(first().runCmd(surroundings, { user: 'root' }).runCmd('ls -A "/mnt/a b" /mnt >/after', { user: 'root' }), 'surroundings')
  assert.deepEqual(cold.cached, [])
  const resumed = await build(first().runCmd(surroundings + ' # again', { user: 'root' }), 'surroundings')
  assert.deepEqual(resumed.cached, [1, 2])
  assert.ok(cold.out.length > 10, cold.out.join('\n'))
  assert.deepEqual(cold.out, resumed.out)
  assert.ok(cold.out.includes('vibemon') && !cold.out.includes('x') && !cold.out.some((l) => /sleep|swap/.test(l)), cold.out.join('\n'))
})
