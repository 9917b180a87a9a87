// The Python package of E2B against the bare agent, in its debug mode (test_python_sdk.py says what each test does).
import { before } from 'node:test'
import { fileURLToPath } from 'node:url'
import { adopt } from '../e2e/python/adopt.mjs'
import { init } from './lib.mjs'

before(() => init({ defaultUser: 'user' }))
adopt(fileURLToPath(new URL('test_python_sdk.py', import.meta.url)))
