// The Python package of E2B builds and uses templates (python/test_sdk.py says what each test does).
import path from 'node:path'
import { here } from './lib.mjs'
import { adopt } from './python/adopt.mjs'

adopt(path.join(here, 'python/test_sdk.py'))
