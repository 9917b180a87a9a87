// The Python package of E2B, in a virtual environment of its own; skipped aloud where no package index is reachable.
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import crypto from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { before, test } from 'node:test'
import { dir, here } from './lib.mjs'

const home = path.join(here, 'python'), requirements = path.join(home, 'requirements.txt')
const venv = path.join(dir, `python-${crypto.createHash('sha256').update(fs.readFileSync(requirements)).digest('hex').slice(0, 12)}`)
const guard = { timeout: 600_000 }
let unreachable, output

function run(command, ...words) {
  const { status, stdout, stderr, error } = spawnSync(command, words, { encoding: 'utf8', maxBuffer: 1 << 26 })
  if (error) throw error
  return { status, text: stdout + stderr }
}

before(() => {
  if (!fs.existsSync(path.join(venv, 'complete'))) {
    fs.rmSync(venv, { recursive: true, force: true })
    const made = run('python3', '-m', 'venv', venv)
    assert.equal(made.status, 0, made.text)
    const pip = (...words) => run(path.join(venv, 'bin/pip'), '--disable-pip-version-check', ...words)
    if (pip('download', '--no-deps', '--quiet', '-d', path.join(venv, 'probe'), 'six').status !== 0) {
      unreachable = 'no index of Python packages is reachable'
      return
    }
    const installed = pip('install', '--quiet', '-r', requirements)
    assert.equal(installed.status, 0, installed.text)
    fs.writeFileSync(path.join(venv, 'complete'), '')
  }
  output = run(path.join(venv, 'bin/python'), path.join(home, 'test_sdk.py')).text
}, guard)

// The names are those of test_sdk.py, which says what each does.
const names = [...fs.readFileSync(path.join(home, 'test_sdk.py'), 'utf8').matchAll(/^class (\w+)|^ +(?:async )?def (test_\w+)/gm)]
let owner
for (const [, group, name] of names) {
  if (group) {
    owner = group
    continue
  }
  const of = owner, items = [...name.matchAll(/_(\d+)(?=_)/g)].map((m) => m[1]).join(' ')
  test(`${items} python ${of}.${name}`.trim(), (t) => {
    if (unreachable) return t.skip(unreachable)
    const result = new RegExp(`^${name} \\(\\S*\\b${of}\\b\\S*\\)[^]*?\\.\\.\\. (\\w+)`, 'm').exec(output)
    assert.equal(result?.[1], 'ok', output)
  })
}
