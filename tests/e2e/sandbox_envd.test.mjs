// The agent as it is in a sandbox, and the way to it: what the envd contract's checklist says of groups, files in /run, ports, routing and
// restored machines. The rest of the list is tests/agent's.
import assert from 'node:assert/strict'
import http from 'node:http'
import net from 'node:net'
import { after, before, test } from 'node:test'
import { Sandbox } from 'e2b'
import { busyboxTemplate, eventually, port, raw, request, viaSandbox } from './lib.mjs'

const guard = { timeout: 300_000 }
const AGENT = 49983
let sandbox, id

before(async () => {
  await busyboxTemplate()
  sandbox = await Sandbox.create('busybox', { timeoutMs: 600_000 })
  id = sandbox.sandboxId
}, guard)
after(() => sandbox?.kill())

const sh = async (command, options) => (await sandbox.commands.run(command, options)).stdout.trim()
// Through the gateway, with headers or by a host name.
const via = (guestPort, path = '/', { method = 'GET', headers = {}, ...rest } = {}) =>
  request(method, path, { headers: { ...viaSandbox(id, guestPort), ...headers }, key: null, ...rest })
const byHost = (host, path = '/health', headers = {}) => request('GET', path, { headers: { Host: host, ...headers }, key: null })
const token = (s = sandbox) => s.envdAccessToken ?? s.connectionConfig?.headers?.['X-Access-Token'] ?? s.envdApi?.accessToken

function envelope(message) {
  const payload = Buffer.from(JSON.stringify(message)), head = Buffer.alloc(5)
  head.writeUInt32BE(payload.length, 1)
  return Buffer.concat([head, payload])
}

// A Start through the gateway: {pid, text(), socket closed?}; messages are kept as they come.
function start(body, to = id, accessToken = token()) {
  return new Promise((resolve, reject) => {
    const live = { text: '', ended: null }
    const q = http.request({ host: '127.0.0.1', port, method: 'POST', path: '/process.Process/Start', agent: false,
      headers: { ...viaSandbox(to, AGENT), 'Content-Type': 'application/connect+json', ...(accessToken && { 'X-Access-Token': accessToken }), Authorization: 'Basic ' + Buffer.from('root:').toString('base64') } }, (r) => {
      live.status = r.statusCode
      live.abort = () => q.destroy()
      live.done = new Promise((end) => {
        r.on('data', (d) => {
          live.text += d.toString('latin1')
          live.pid = Number(/"pid":(\d+)/.exec(live.text)?.[1])
          resolve(live)
        })
        r.on('close', () => { live.complete = r.complete; end(live) })
        r.on('error', () => {})
      })
      if (r.statusCode !== 200) resolve(live)
    })
    q.on('error', reject)
    q.end(envelope(body))
  })
}
const command = (...args) => ({ process: { cmd: '/bin/sh', args: ['-c', ...args] } })

test('E131: the groups of commands, terminals and what is the system\'s', guard, async () => {
  assert.equal(await sh('cat /proc/self/cgroup | grep ^0:'), '0::/user')
  let screen = ''
  const pty = await sandbox.pty.create({ cols: 80, rows: 24, onData: (d) => { screen += Buffer.from(d).toString() } })
  await sandbox.pty.sendInput(pty.pid, Buffer.from('cat /proc/self/cgroup; exit 0\n'))
  await pty.wait()
  assert.match(screen, /0::\/ptys\r?\n/)
  const own = await start({ ...command('cat /proc/self/cgroup; cat /proc/1/cgroup'), tag: '_system' })
  await own.done
  const out = Buffer.from([...own.text.matchAll(/"stdout":"([^"]*)"/g)].map((m) => m[1]).join(''), 'base64').toString()
  const lines = out.split('\n').filter((l) => l.startsWith('0::'))
  assert.equal(lines.length, 2)
  assert.equal(lines[0], lines[1])
  assert.notEqual(lines[0], '0::/user')
})

test('E132: the files that tell where one is', guard, async () => {
  assert.equal(await sh('cat /run/e2b/.E2B_SANDBOX; stat -c " %a" /run/e2b/.E2B_SANDBOX'), 'true 444')
  assert.equal(await sh('cat /run/e2b/.E2B_SANDBOX_ID'), id)
  assert.equal(await sh('cat /run/e2b/.E2B_TEMPLATE_ID'), (await request('GET', `/sandboxes/${id}`)).json.templateID)
})

test('E202: an upload onto the control files of a group', guard, async () => {
  await sandbox.files.write('/sys/fs/cgroup/user/cpu.weight', '77', { user: 'root' })
  assert.equal(await sh('cat /sys/fs/cgroup/user/cpu.weight'), '77')
  assert.equal(await sandbox.files.read('/sys/fs/cgroup/user/cpu.weight'), '77\n')
})

test('a process of the guest cannot claim the agent, whether it has a token or not', guard, async () => {
  const open = await request('POST', '/sandboxes', { body: { templateID: 'busybox', timeout: 300, secure: false } })
  assert.equal(open.status, 201, open.body)
  try {
    const claim = (body) => `printf 'POST /init HTTP/1.1\\r\\nHost: x\\r\\nContent-Type: application/json\\r\\nContent-Length: ${body.length}\\r\\nConnection: close\\r\\n\\r\\n${body}' | busybox nc 127.0.0.1 49983`
    for (const body of ['{"accessToken":"mine"}', '{}', '{"envVars":{"A":"mine"}}']) assert.match(await sh(claim(body)), /^HTTP\/1\.1 401 /)
    const other = await start(command(claim('{"accessToken":"mine"}')), open.json.sandboxID, null)
    await other.done
    assert.match(Buffer.from(/"stdout":"([^"]*)"/.exec(other.text)[1], 'base64').toString(), /^HTTP\/1\.1 401 /)
    const still = await start(command('echo open'), open.json.sandboxID, null)
    assert.equal(still.status, 200)
    await still.done
  } finally { await request('DELETE', `/sandboxes/${open.json.sandboxID}`) }
  assert.equal(await sh('echo $A'), '')
})

test('E241: services on every kind of address are reached; E242: one that stops is not', guard, async () => {
  await sh('mkdir -p /tmp/w && echo index > /tmp/w/index.html')
  // "localhost" is one of the first two; the static busybox has no resolver.
  const addresses = { 3210: '127.0.0.1', 3211: '[::1]', 3213: '0.0.0.0', 3214: '[::]' }
  for (const [p, address] of Object.entries(addresses)) await sh(`busybox httpd -p ${address}:${p} -h /tmp/w`)
  for (const p of Object.keys(addresses)) await eventually(async () => (await via(p)).body === 'index\n', 30)
  await sh("kill $(ps -o pid,args | grep '[h]ttpd -p 127.0.0.1:3210' | awk '{print $1}')")
  const closed = await eventually(async () => { const r = await via(3210); return r.status === 502 && r }, 30)
  assert.deepEqual([closed.json.port, closed.json.message], [3210, 'The sandbox is running but port is not open'])
})

test('E243: hosts that name port and sandbox; E244: hosts that do not', guard, async () => {
  for (const host of [`${AGENT}-${id}.dom`, `${AGENT}-${id}-xyz.dom`, `${AGENT}-${id}.sub.dom:443`]) assert.equal((await byHost(host)).status, 204, host)
  const bad = async (host, text) => {
    const r = await byHost(host, '/health', viaSandbox(id, AGENT))
    assert.deepEqual([host, r.status, r.body.trim()], [host, 400, text])
    assert.match(r.headers['content-type'], /^text\/plain/)
  }
  // The API answers on the same port: what has no number before the dash is a host of its own (my-api.example.com).
  await bad(`70000-${id}.dom`, 'Invalid sandbox port')
  await bad('1-ABC.dom', 'Invalid sandbox ID')
})

test('E245: headers on an address; E246: a host name beats headers', guard, async () => {
  for (const host of [`127.0.0.1:${port}`, 'localhost', `localhost:${port}`, 'sandbox.dom']) {
    assert.equal((await byHost(host, '/health', viaSandbox(id, AGENT))).status, 204, host)
    for (const [name, value] of Object.entries(viaSandbox(id, AGENT))) {
      const r = await byHost(host, '/health', { [name]: value })
      assert.deepEqual([r.status, /missing header/i.test(r.body)], [400, true], `${host} ${name} ${r.body}`)
    }
  }
  assert.equal((await byHost(`${AGENT}-${id}.dom`, '/health', viaSandbox('inothing', 1))).status, 204)
})

test('S117 S118 E247: an unknown sandbox; S118 E248: a closed port; S118 E249: pages for browsers', guard, async () => {
  const unknown = await request('GET', '/', { headers: viaSandbox('inothing', 80), key: null })
  assert.deepEqual([unknown.status, unknown.json], [502, { sandboxId: 'inothing', message: 'The sandbox was not found', code: 502 }])
  const closed = await via(3999)
  assert.deepEqual([closed.status, closed.json.port, closed.json.code, closed.json.sandboxId], [502, 3999, 502, id])
  const chrome = { 'User-Agent': 'Mozilla/5.0 (X11; Linux x86_64) Chrome/120' }
  for (const [p, text] of [[3999, /no service running on port/]]) {
    const page = await via(p, '/', { headers: chrome })
    assert.deepEqual([page.status, page.headers['content-type'], page.body.startsWith('<html'), page.body.endsWith('</html>')], [502, 'text/html; charset=utf-8', true, true])
    assert.match(page.body, text)
  }
  for (const headers of [{ 'Sec-Fetch-Mode': 'cors' }, { Accept: 'application/json' }, { 'X-Requested-With': 'XMLHttpRequest' }])
    assert.equal((await via(3999, '/', { headers: { ...chrome, ...headers } })).json?.code, 502)
})

test('S120 E250: routes of the control plane are closed, of sandboxes that exist and of others', guard, async () => {
  for (const to of [id, 'inothing'])
    for (const [path, shown] of [['/init', '/init'], ['//init', '/init'], ['/files/../freeze', '/freeze'], ['/%69nit', '/init'], ['/fsthaw', '/fsthaw'], ['/upgrade/', '/upgrade']]) {
      const text = await raw(`POST ${path} HTTP/1.1\r\nHost: ${AGENT}-${to}.dom\r\nContent-Length: 0\r\nConnection: close\r\n\r\n`)
      assert.match(text, /^HTTP\/1\.1 404 /, path)
      assert.ok(text.includes(`{"message":"This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL","path":"${shown}","code":404}`), text)
    }
})

test('S122 E251: events of a server are passed on as they come', guard, async () => {
  await sandbox.files.write('/tmp/sse.sh', `#!/bin/sh
while read -r line; do line=$(printf %s "$line" | tr -d '\\r'); [ -z "$line" ] && break; done
printf 'HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nConnection: close\\r\\n\\r\\ndata: one\\n\\n'
while [ ! -e /tmp/go ]; do sleep 0.1; done
printf 'data: two\\n\\n'
`)
  await sandbox.commands.run('chmod +x /tmp/sse.sh; exec busybox nc -ll -p 9100 -e /tmp/sse.sh', { background: true, timeoutMs: 0 })
  await eventually(async () => {
    const got = await new Promise((resolve) => {
      const q = http.get({ host: '127.0.0.1', port, headers: viaSandbox(id, 9100), agent: false }, (r) => {
        if (r.statusCode !== 200) { r.resume(); resolve(false); return }
        let text = ''
        r.on('data', async (d) => {
          text += d
          if (text === 'data: one\n\n') await sh('touch /tmp/go') // only now is there more
        })
        r.on('end', () => resolve(text))
      })
      q.on('error', () => resolve(false))
    })
    if (got) assert.equal(got, 'data: one\n\ndata: two\n\n')
    return got
  }, 60)
})

test('E252: envelopes arrive at once, and a client that leaves is gone for the agent', guard, async () => {
  const held = async () => Number(await sh("ls -l /proc/$(pidof envd vmon-agent init | tr ' ' '\\n' | sort -n | head -1)/fd | grep -c socket", { user: 'root' }))
  const before = await held()
  const all = []
  for (let i = 0; i < 10; i++) {
    const live = await start({ ...command('echo first; exec sleep 1000'), stdin: false })
    assert.ok(live.pid > 0)
    await eventually(() => live.text.includes(Buffer.from('first\n').toString('base64')), 30)
    all.push(live)
  }
  assert.ok(await held() >= before + 10)
  for (const live of all) live.abort()
  await eventually(async () => await held() <= before + 1, 30)
  for (const live of all) assert.equal(await sandbox.commands.kill(live.pid), true)
})

test('E253: a sandbox that is killed resets its streams', guard, async () => {
  const other = await Sandbox.create('busybox', { timeoutMs: 300_000 })
  const live = await start({ ...command('exec sleep 1000'), stdin: false }, other.sandboxId, token(other))
  assert.equal(live.status, 200)
  await other.kill()
  await live.done
  assert.equal(live.complete, false)
  assert.ok(!live.text.includes('\x02'), 'no end of the stream')
  assert.equal((await request('GET', '/health', { headers: viaSandbox(other.sandboxId, AGENT), key: null })).status, 502)
})

test('S82 E254: maskRequestHost; S119 E255: a token for traffic', guard, async () => {
  const other = await Sandbox.create('busybox', { timeoutMs: 300_000, network: { maskRequestHost: 'app.test:${PORT}', allowPublicTraffic: false } })
  try {
    const to = other.sandboxId, traffic = other.trafficAccessToken
    assert.ok(traffic)
    const shown = (await request('GET', `/sandboxes/${to}`)).json.network
    assert.deepEqual([shown.maskRequestHost, shown.allowPublicTraffic], ['app.test:${PORT}', false])
    await other.files.write('/tmp/echo.sh', `#!/bin/sh
all=
while read -r line; do line=$(printf %s "$line" | tr -d '\\r'); [ -z "$line" ] && break; all="$all$line
"; done
printf 'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n%s' "$all"
`)
    await other.commands.run('chmod +x /tmp/echo.sh; exec busybox nc -ll -p 3000 -e /tmp/echo.sh', { background: true, timeoutMs: 0 })
    const get = (headers) => request('GET', '/x?y', { headers: { Host: `3000-${to}.example.test`, ...headers }, key: null })
    const check = async () => {
      const r = await eventually(async () => { const a = await get({ 'e2b-traffic-access-token': traffic, 'X-Forwarded-Host': 'forged' }); return a.status === 200 && a })
      assert.match(r.body, /^GET \/x\?y HTTP\/1\.1\n/)
      assert.match(r.body, /^host: app\.test:3000$/im)
      assert.match(r.body, new RegExp(`^x-forwarded-host: 3000-${to}\\.example\\.test$`, 'im'))
      assert.doesNotMatch(r.body, /forged|traffic-access-token/i)
    }
    await check()
    const missing = await get({})
    assert.deepEqual([missing.status, missing.json.code], [403, 403])
    assert.match(missing.json.message, /'e2b-traffic-access-token' is missing/)
    assert.match((await get({ 'e2b-traffic-access-token': 'wrong' })).json.message, /is invalid/)
    assert.equal((await request('GET', '/health', { headers: { Host: `${AGENT}-${to}.example.test` }, key: null })).status, 204)
    assert.equal((await request('PUT', `/sandboxes/${to}/network`, { body: { denyOut: ['9.9.9.9'] } })).status, 204)
    assert.equal((await request('GET', `/sandboxes/${to}`)).json.network.maskRequestHost, 'app.test:${PORT}')
    await other.pause()
    await Sandbox.connect(to)
    await check()
  } finally { await other.kill() }
})

test('E238: a restored machine has its processes, watchers and terminals, and the identity that it is given', guard, async () => {
  const origin = await Sandbox.create('busybox', { timeoutMs: 300_000, envs: { MINE: '1' } })
  try {
    const rpc = (s, method, body) => request('POST', `/filesystem.Filesystem/${method}`, { headers: { ...viaSandbox(s.sandboxId, AGENT), 'X-Access-Token': token(s) }, body, key: null })
    await origin.commands.run('mkdir /tmp/watched')
    const { watcherId } = (await rpc(origin, 'CreateWatcher', { path: '/tmp/watched' })).json
    const pty = await origin.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
    await origin.pty.sendInput(pty.pid, Buffer.from('cd /tmp/watched; MARK=before\n'))
    const cat = await origin.commands.run('cat > /tmp/cat.out', { background: true, stdin: true, timeoutMs: 0 })
    const [fork] = await origin.fork()
    try {
      assert.notEqual(token(fork), token(origin))
      assert.equal((await fork.commands.run('echo $MINE $E2B_SANDBOX_ID')).stdout, `1 ${fork.sandboxId}\n`)
      await fork.commands.sendStdin(cat.pid, 'to the copy\n')
      await eventually(async () => (await fork.commands.run('cat /tmp/cat.out')).stdout === 'to the copy\n')
      let screen = ''
      await fork.pty.connect(pty.pid, { onData: (d) => { screen += Buffer.from(d).toString() }, timeoutMs: 0 })
      await fork.pty.sendInput(pty.pid, Buffer.from('echo $MARK > made-by-the-terminal; echo do""ne\n'))
      await eventually(() => screen.includes('done\r\n'))
      assert.equal((await fork.commands.run('cat /tmp/watched/made-by-the-terminal')).stdout, 'before\n')
      const events = await eventually(async () => (await rpc(fork, 'GetWatcherEvents', { watcherId })).json.events)
      assert.equal(events[0].name, 'made-by-the-terminal')
      const old = await request('POST', '/filesystem.Filesystem/GetWatcherEvents', { headers: { ...viaSandbox(fork.sandboxId, AGENT), 'X-Access-Token': token(origin) }, body: { watcherId }, key: null })
      assert.equal(old.status, 401)
    } finally { await fork.kill() }
    assert.equal((await origin.commands.run('ls /tmp/watched; cat /tmp/cat.out')).stdout, '')
  } finally { await origin.kill() }
})

test('S122: each side of a tunnel may end first', guard, async () => {
  await sandbox.files.write('/tmp/half.sh', `#!/bin/sh
while read -r line; do line=$(printf %s "$line" | tr -d '\\r'); [ -z "$line" ] && break; done
printf 'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: count\\r\\nConnection: Upgrade\\r\\n\\r\\nready\\n'
echo "counted $(wc -c)"
`)
  await sandbox.commands.run('chmod +x /tmp/half.sh; exec busybox nc -ll -p 9200 -e /tmp/half.sh', { background: true, timeoutMs: 0 })
  const text = await eventually(() => new Promise((resolve) => {
    const s = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true }, () => s.write(`GET / HTTP/1.1\r\nHost: 9200-${id}.dom\r\nConnection: Upgrade\r\nUpgrade: count\r\n\r\n`))
    let got = ''
    s.on('data', (d) => {
      got += d
      if (got.endsWith('ready\n')) s.end('x'.repeat(100000)) // the guest hears of the end, and answers after it
    })
    s.on('end', () => resolve(got.startsWith('HTTP/1.1 101') && got))
    s.on('error', () => resolve(false))
  }), 60)
  assert.match(text, /ready\ncounted 100000\n$/)
})
