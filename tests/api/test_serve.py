"""`vmon serve` as a process: first start, second server, restart, stop, wrong options, a full life of its files."""
import http.client
import json
import os
import ssl
import stat
import subprocess
import unittest

from server import VMON, Server


class Serve(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.addCleanup(self.server.stop)

    def mode(self, name):
        return stat.S_IMODE(os.stat(os.path.join(self.server.data, name)).st_mode)

    def test_first_start(self):
        server = self.server.start()
        self.assertRegex(server.key, '^e2b_[0-9a-f]{40}$')
        for name in ('default-key', 'root-secret', 'cluster-token'):
            self.assertEqual(self.mode(name), 0o600, name)
        log = server.log()
        self.assertEqual(log.count(server.key), 1)  # printed once
        self.assertIn(f'vmon: listening on http://127.0.0.1:{server.port}\n', log)
        self.assertIn("vmon kit", log)  # without a kit it says so, with the mend
        self.assertEqual(server.request('GET', '/v2/sandboxes').status, 200)

    def test_restart_keeps_everything(self):
        server = self.server.start()
        key, token = server.key, server.read('cluster-token')
        server.kill()
        server.start()
        self.assertEqual((server.key, server.read('cluster-token')), (key, token))
        self.assertEqual(server.request('GET', '/v2/sandboxes', key=key).status, 200)
        self.assertEqual(server.log().count(key), 1)

    def test_stops_in_order(self):
        server = self.server.start()
        idle = server.connection()
        self.addCleanup(idle.close)
        idle.request('GET', '/health')
        idle.getresponse().read()  # a connection that stays open must not hold the stop up
        self.assertEqual(server.terminate(), 0)

    def test_second_server_on_the_same_data(self):
        server = self.server.start()
        other = Server()
        self.addCleanup(other.stop)
        other.data = server.data
        result = subprocess.run(other.command(), capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f'process {server.process.pid}', result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertEqual(server.request('GET', '/v2/sandboxes').status, 200)

    def test_address_in_use(self):
        server = self.server.start()
        other = Server()
        self.addCleanup(other.stop)
        other.port = server.port
        result = subprocess.run(other.command(), capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn('in use', result.stderr)

    def test_wrong_usage(self):
        for option in ('--object-store=s3://x', '--no-such-option', '--max-builds=0', 'stray'):
            result = subprocess.run([VMON, 'serve', '--data-dir', self.server.data, option], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, 2, option)
        self.assertFalse(os.path.exists(self.server.data))

    def certificate(self):
        cert, key = (os.path.join(self.server.directory, name) for name in ('cert.pem', 'key.pem'))
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2',
                        '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert],
                       check=True, capture_output=True)
        return cert, key

    def test_tls(self):
        cert, key = self.certificate()
        self.server.options = ('--tls-cert', cert, '--tls-key', key)
        server = self.server.start('https')
        context = ssl.create_default_context(cafile=cert)
        context.set_alpn_protocols(['http/1.1'])
        connection = http.client.HTTPSConnection('127.0.0.1', server.port, timeout=30, context=context)
        for _ in range(2):  # kept alive
            connection.request('GET', '/v2/sandboxes', headers={'X-API-Key': server.key})
            answer = connection.getresponse()
            self.assertEqual((answer.status, json.loads(answer.read())), (200, []))
        self.assertEqual(connection.sock.selected_alpn_protocol(), 'http/1.1')
        connection.request('POST', '/v3/templates', json.dumps({'name': 'x'}), {'X-API-Key': server.key, 'Content-Type': 'application/json'})
        self.assertEqual(connection.getresponse().status, 202)
        connection.close()
        with self.assertRaises((http.client.HTTPException, ConnectionError)):  # plain http is not answered
            server.request('GET', '/health')
        self.assertEqual(server.terminate(), 0)

    def test_tls_files(self):
        cert, key = self.certificate()
        other = os.path.join(self.server.directory, 'other.pem')
        subprocess.run(['openssl', 'genpkey', '-algorithm', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-out', other],
                       check=True, capture_output=True)
        for options, status, text in ((('--tls-cert', cert), 2, 'belong together'), (('--tls-cert', cert, '--tls-key', '/nowhere'), 1, '/nowhere'),
                                      (('--tls-cert', key, '--tls-key', key), 1, key), (('--tls-cert', cert, '--tls-key', other), 1, 'mismatch')):
            self.server.options = options
            result = subprocess.run(self.server.command(), capture_output=True, text=True, timeout=60)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertIn(text, result.stderr)
            self.assertNotIn('PRIVATE', result.stderr)

    def admin(self, *words):
        return subprocess.run([VMON, 'admin', '--data-dir', self.server.data, '--cluster-url',
                               f'http://127.0.0.1:{self.server.cluster_port}', *words], capture_output=True, text=True, timeout=60)

    def test_admin_of_the_node(self):
        self.server.options = ('--node-name', 'n1')
        self.server.start()
        node, = json.loads(self.admin('list-nodes', '--json').stdout)
        self.assertEqual((node['name'], node['sandboxes'], node['builds'], node['status']), ('n1', 0, 0, 'unavailable'))
        self.assertIn('run vmon kit', node['reason'])
        self.assertEqual(json.loads(self.admin('list-sandboxes', '--json').stdout), [])
        self.assertEqual(len(self.admin('list-sandboxes').stdout.splitlines()), 1)
        unknown = 'i' + '0' * 20
        for words in (('kill-sandbox', unknown), ('kill-sandbox', '../x'), ('console', unknown), ('console', '..'),
                      ('console', '01234567-89ab-4cde-8f01-23456789abcd')):
            result = self.admin(*words)
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), words)
        for method, path in (('GET', '/cluster/sandboxes'), ('GET', '/cluster/nodes'), ('POST', '/cluster/gc'),
                             ('DELETE', f'/cluster/sandboxes/{unknown}'), ('GET', f'/cluster/vms/{unknown}/console')):
            connection = self.server.connection(self.server.cluster_port)
            connection.request(method, path)  # without the cluster token
            self.assertEqual(connection.getresponse().status, 401, path)
            connection.close()

    def test_garbage(self):
        server = self.server.start()
        builds = os.path.join(server.data, 'builds')
        made = server.request('POST', '/v3/templates', {'name': 'gone'}).json
        self.admin('gc')  # the housekeeping's own first run is over
        names = {made['buildID']: 'failed', '01234567-89ab-4cde-8f01-23456789abcd': 'record', 'notes': None}
        for name in names:
            os.makedirs(os.path.join(builds, name))
            with open(os.path.join(builds, name, 'rootfs.img'), 'wb') as f:
                f.write(b'x' * 8192)
        waiting = json.loads(self.admin('gc', '--dry-run', '--json').stdout)
        self.assertEqual([b['name'] for b in waiting['items']], ['01234567-89ab-4cde-8f01-23456789abcd'])  # the other one waits
        self.assertEqual(server.request('DELETE', '/templates/gone').status, 204)
        result = json.loads(self.admin('gc', '--dry-run', '--json').stdout)
        self.assertTrue(result['dryRun'])
        self.assertGreaterEqual(result['bytes'], 2 * 8192)
        self.assertEqual({b['name'] for b in result['items']}, set(names) - {'notes'})
        for b in result['items']:
            self.assertIn(names[b['name']], b['reason'])
        self.assertEqual(set(os.listdir(builds)), set(names))
        self.assertIn('removed 2 items', self.admin('gc').stdout)
        self.assertEqual(os.listdir(builds), ['notes'])
        self.assertEqual(json.loads(self.admin('gc', '--json').stdout)['items'], [])

    def test_leaves_no_litter(self):
        server = self.server.start()
        stray = os.path.join(server.data, 'sandboxes', 'i' + '0' * 20)
        server.kill()
        os.mkdir(stray)
        with open(os.path.join(stray, 'overlay.qcow2'), 'wb'):
            pass
        server.start()
        self.assertFalse(os.path.exists(stray))


if __name__ == '__main__':
    unittest.main()
