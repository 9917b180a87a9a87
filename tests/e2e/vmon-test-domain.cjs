// Loaded before a client: every name below vmon.test is this machine, as a wildcard in the DNS would make it.
const dns = require('node:dns')
const real = dns.lookup
dns.lookup = (host, options, callback) => {
  if (typeof options === 'function') [options, callback] = [{}, options]
  if (!/(^|\.)vmon\.test$/.test(host)) return real(host, options, callback)
  process.nextTick(() => options?.all ? callback(null, [{ address: '127.0.0.1', family: 4 }]) : callback(null, '127.0.0.1', 4))
}
