// Builds a template from an image, starts a sandbox from it and runs a command, through the unmodified E2B SDK.
// Usage: quickstart.mjs IMAGE   (E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY in the environment)
import { Sandbox, Template, defaultBuildLogger } from 'e2b'

const image = process.argv[2]
const phases = []

async function timed(name, fn) {
  const start = performance.now()
  const value = await fn()
  phases.push([name, performance.now() - start])
  return value
}

const template = Template()
  .fromImage(image)
  .setEnvs({ GREETING: 'hello' })
  .runCmd('echo "$GREETING from $(uname -sr), built by $(id -un)" > /home/user/built.txt')

await timed('build template', () =>
  Template.build(template, 'quickstart', { cpuCount: 2, memoryMB: 512, onBuildLogs: defaultBuildLogger() }))
const sandbox = await timed('create sandbox', () => Sandbox.create('quickstart', { timeoutMs: 300_000 }))
try {
  const result = await timed('run command', () => sandbox.commands.run('cat /home/user/built.txt; uptime'))
  console.log('\nThe sandbox says:\n' + result.stdout.replace(/^/gm, '  ').trimEnd() + '\n')
} finally {
  await timed('kill sandbox', () => sandbox.kill())
}
for (const [name, ms] of phases)
  console.log(`${name.padEnd(16)} ${ms < 1000 ? ms.toFixed(0) + ' ms' : (ms / 1000).toFixed(1) + ' s'}`)
