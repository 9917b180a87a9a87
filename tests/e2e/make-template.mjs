// Builds the busybox template, for the benchmarks.
import { busyboxTemplate } from './lib.mjs'
await busyboxTemplate()
