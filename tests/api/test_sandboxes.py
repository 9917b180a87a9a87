"""The sandbox routes as far as they need no virtual machine: credentials, bodies, lists, unknown sandboxes (sandbox-api)."""
import json
import unittest

from server import Server

UNKNOWN = 'i0123456789abcdefghij'
server = None


def setUpModule():
    global server
    server = Server().start()


def tearDownModule():
    server.stop()


class Case(unittest.TestCase):
    def refused(self, answer, status, message=None):
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers['Content-Type'], 'application/json; charset=utf-8')
        self.assertEqual(answer.json['code'], status)
        self.assertTrue(answer.json['message'])
        if message is not None:
            self.assertIn(message, answer.json['message'])

    def unknown(self, answer, sandbox=UNKNOWN):
        self.refused(answer, 404)
        self.assertEqual(answer.json['message'], f'Sandbox "{sandbox}" doesn\'t exist or you don\'t have access to it')


# method, path, body: every route of a sandbox
SANDBOX_ROUTES = [
    ('GET', '/sandboxes/%s', None),
    ('DELETE', '/sandboxes/%s', None),
    ('POST', '/sandboxes/%s/connect', {'timeout': 300}),
    ('POST', '/v2/sandboxes/%s/connect', {}),
    ('POST', '/sandboxes/%s/timeout', {'timeout': 300}),
    ('POST', '/sandboxes/%s/refreshes', {}),
    ('POST', '/sandboxes/%s/pause', {}),
    ('POST', '/sandboxes/%s/resume', {}),
    ('PUT', '/sandboxes/%s/network', {}),
    ('POST', '/sandboxes/%s/fork', {}),
    ('POST', '/sandboxes/%s/snapshots', {}),
]


class Credentials(Case):
    def test_s13_s14_missing_and_wrong(self):
        for method, path, body in [('POST', '/sandboxes', {'templateID': 'base'}), ('GET', '/v2/sandboxes', None)] + SANDBOX_ROUTES:
            path = path.replace('%s', UNKNOWN)
            with self.subTest(method=method, path=path):
                self.refused(server.request(method, path, body, key=None), 401, 'authorization header is missing')
                self.refused(server.request(method, path, body, key='e2b_' + '0' * 40), 401, 'Invalid API key')
                self.refused(server.request(method, path, body, key='nonsense'), 401)

    def test_before_the_body_is_looked_at(self):
        self.refused(server.request('POST', '/sandboxes', b'{', key=None), 401)

    def test_bearer(self):
        answer = server.request('GET', '/v2/sandboxes', key=None, headers={'Authorization': 'Bearer ' + server.key})
        self.assertEqual(answer.status, 200)


class Create(Case):
    PATHS = ('/sandboxes', '/v2/sandboxes')

    def test_s17_unreadable_bodies(self):
        for path in self.PATHS:
            for body in (b'', b'{', b'[]', b'"x"', b'null', b'{"templateID":"\xff"}', b'\x00', b'{"templateID":"a"} trailing'):
                with self.subTest(path=path, body=body):
                    self.refused(server.request('POST', path, body), 400, 'Error when parsing request')

    def test_s18_wrong_types(self):
        for path in self.PATHS:
            for body in ({}, {'templateID': 5}, {'templateID': 'x', 'timeout': 'soon'}, {'templateID': 'x', 'metadata': {'a': 1}},
                         {'templateID': 'x', 'envVars': ['a']}, {'templateID': 'x', 'timeout': 2 ** 40}):
                with self.subTest(path=path, body=body):
                    self.refused(server.request('POST', path, body), 400, 'validation error: ')

    def test_unknown_template(self):
        for path in self.PATHS:
            for chunked in (False, True):
                self.refused(server.request('POST', path, {'templateID': 'no-such'}, chunked=chunked), 404, "template 'no-such' not found")

    def test_s39_template_is_resolved_before_options_are_judged(self):
        self.refused(server.request('POST', '/sandboxes', {'templateID': 'no-such', 'timeout': -1}), 404)

    def test_bad_reference(self):
        for reference in ('a b', 'a/b/c', ':', '', '../x', 'a:b:c'):
            with self.subTest(reference=reference):
                answer = server.request('POST', '/v2/sandboxes', {'templateID': reference})
                self.assertIn(answer.status, (400, 404), answer.body)
                self.assertEqual(answer.json['code'], answer.status)

    def test_s12_oversized_body(self):
        self.assertGreaterEqual(server.request('POST', '/sandboxes', b' ' * (17 << 20)).status, 400)
        self.assertEqual(server.request('GET', '/health', key=None).status, 200)


class UnknownSandboxes(Case):
    def test_s20(self):
        for method, path, body in SANDBOX_ROUTES:
            with self.subTest(method=method, path=path):
                self.unknown(server.request(method, path % UNKNOWN, body))

    def test_s24_composite_id(self):
        self.unknown(server.request('GET', f'/sandboxes/{UNKNOWN}-6532622b'))
        self.unknown(server.request('GET', '/sandboxes/non-existing'), 'non')

    def test_s19_malformed_id(self):
        for method, path, body in SANDBOX_ROUTES:
            for sandbox in ('non-existing-sandbox', 'UPPER', 'a%2Fb', 'a.b', 'a%00', '%F0%9F', 'x' * 65, '-'):
                with self.subTest(method=method, path=path, sandbox=sandbox):
                    self.refused(server.request(method, path % sandbox, body), 400)

    def test_bodies_before_look_up(self):
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/timeout', {}), 400, "'timeout' is required")
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/timeout', {'timeout': -1}), 400)
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/connect', {}), 400, "'timeout' is required")
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/connect', {'timeout': 25 * 3600}), 400, 'Timeout cannot be greater than 24 hours')
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/refreshes', {'duration': 3601}), 400)
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/fork', {'count': 0}), 400)
        self.refused(server.request('POST', f'/sandboxes/{UNKNOWN}/fork', {'count': 101}), 400)

    def test_body_may_be_absent_where_it_is_optional(self):
        for path in ('/v2/sandboxes/%s/connect', '/sandboxes/%s/refreshes', '/sandboxes/%s/pause', '/sandboxes/%s/resume'):
            with self.subTest(path=path):
                self.unknown(server.request('POST', path % UNKNOWN))
                self.unknown(server.request('POST', path % UNKNOWN, b''))

    def test_logs_and_metrics_are_empty(self):
        self.assertEqual(server.request('GET', f'/sandboxes/{UNKNOWN}/logs').json, {'logs': [], 'logEntries': []})
        self.assertEqual(server.request('GET', f'/v2/sandboxes/{UNKNOWN}/logs').json, {'logs': []})
        self.assertEqual(server.request('GET', f'/sandboxes/{UNKNOWN}/metrics').json, [])
        self.assertEqual(server.request('GET', f'/sandboxes/metrics?sandbox_ids={UNKNOWN}').json, {'sandboxes': {}})
        self.refused(server.request('GET', f'/sandboxes/{UNKNOWN}/metrics?start=2&end=1'), 400, 'Invalid time range for metrics')
        self.refused(server.request('GET', f'/sandboxes/{UNKNOWN}/metrics?start=x'), 400)
        self.refused(server.request('GET', '/sandboxes/metrics'), 400)

    def test_traffic_to_an_unknown_sandbox(self):
        answer = server.request('GET', '/health', key=None, headers={'E2b-Sandbox-Id': UNKNOWN, 'E2b-Sandbox-Port': '49983'})
        self.assertEqual(answer.status, 502)
        self.assertEqual(answer.json, {'sandboxId': UNKNOWN, 'message': 'The sandbox was not found', 'code': 502})


class Lists(Case):
    def test_empty(self):
        answer = server.request('GET', '/v2/sandboxes')
        self.assertEqual((answer.status, answer.json), (200, []))
        self.assertIsNone(answer.headers['X-Next-Token'])
        self.assertEqual(answer.headers['X-Total-Running'], '0')
        self.assertIsNone(server.request('GET', '/v2/sandboxes?state=paused').headers['X-Total-Running'])
        answer = server.request('GET', '/sandboxes')
        self.assertEqual((answer.status, answer.json), (200, []))

    def test_s7_good_queries(self):
        for query in ('state=running', 'state=running,paused', 'state=running&state=paused', 'limit=1', 'limit=100', 'order=asc',
                      'template=no-such', 'startedAfter=2026-08-21T10:00:00.123456Z', 'unknown=1',
                      'metadata=a%252520b%3Dx%252526y%25253Dz%26k2%3Dv'):
            with self.subTest(query=query):
                self.assertEqual(server.request('GET', '/v2/sandboxes?' + query).json, [])

    def test_bad_queries(self):
        for query, message in (('state=dead', 'state'), ('limit=0', 'limit'), ('limit=101', 'limit'), ('limit=x', 'limit'),
                               ('order=up', 'order'), ('template=a:b', 'Invalid template'), ('startedAfter=now', 'startedAfter'),
                               ('metadata=a', 'Error parsing metadata'), ('metadata=a%3Db%3Dc', 'Error parsing metadata'),
                               ('nextToken=!!', 'Invalid next token'), ('metadata=%zz', '')):
            with self.subTest(query=query):
                self.refused(server.request('GET', '/v2/sandboxes?' + query), 400, message)
        self.refused(server.request('GET', '/sandboxes?metadata=a'), 400, 'Error parsing metadata')

    def test_snapshots(self):
        self.assertEqual(server.request('GET', '/snapshots?limit=100').json, [])


class OtherRoutes(Case):
    def test_s110_health(self):
        answer = server.request('GET', '/health', key=None)
        self.assertEqual((answer.status, answer.body), (200, b'Health check successful'))

    def test_s107_s108_not_available(self):
        for method, path in (('GET', '/volumes'), ('POST', '/volumes'), ('GET', '/secrets'), ('POST', '/secrets')):
            self.refused(server.request(method, path), 400, 'not available')

    def test_unknown(self):
        self.refused(server.request('GET', '/no/such/route'), 404)
        self.refused(server.request('PATCH', '/sandboxes'), 405)

    def test_api_and_traffic_share_a_connection(self):
        connection = server.connection()
        for _ in range(3):
            connection.request('GET', '/v2/sandboxes', headers={'X-API-Key': server.key})
            response = connection.getresponse()
            self.assertEqual((response.status, json.loads(response.read())), (200, []))
            connection.request('GET', '/', headers={'E2b-Sandbox-Id': UNKNOWN, 'E2b-Sandbox-Port': '80'})
            response = connection.getresponse()
            self.assertEqual((response.status, json.loads(response.read())['code']), (502, 502))
        connection.close()


if __name__ == '__main__':
    unittest.main()
