// A file of Python's unittest as tests of node: one each, by the same name; skipped aloud where there is no package to test.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import { before, test } from 'node:test'

const guard = { timeout: 600_000 }

function run(command, file) {
  return new Promise((resolve, reject) => {
    const child = spawn(command, [file], { stdio: ['ignore', 'pipe', 'pipe'] })
    let text = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (d) => { text += d })
    child.on('error', reject)
    child.on('close', () => resolve(text))
  })
}

// The numbers of a name lead the title: test_81_e239_build becomes "81 E239 …".
export function adopt(file) {
  const unreachable = !process.env.VMON_PYTHON && 'no index of Python packages is reachable'
  let output, owner
  if (!unreachable) before(async () => { output = await run(process.env.VMON_PYTHON, file) }, guard)
  for (const [, group, name] of fs.readFileSync(file, 'utf8').matchAll(/^class (\w+)|^ +(?:async )?def (test_\w+)/gm)) {
    if (group) {
      owner = group
      continue
    }
    const of = owner, items = [...name.matchAll(/_([a-z]?\d+)(?=_)/g)].map((m) => m[1].toUpperCase()).join(' ')
    test(`${items} python ${of}.${name}`.trim(), guard, (t) => {
      if (unreachable) return t.skip(unreachable)
      const result = new RegExp(`^${name} \\(\\S*\\b${of}\\b\\S*\\)[^]*?\\.\\.\\. (\\w+)`, 'm').exec(output)
      assert.equal(result?.[1], 'ok', output)
    })
  }
}
