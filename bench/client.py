"""Shared by the benchmarks that talk to the server of tests/e2e/run: requests, percentiles, the report."""
import http.client, json, os, platform, sys

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
runs = int(os.environ.get('VMON_BENCH_RUNS', '20'))
port = int(os.environ['VMON_E2E_PORT'])
data = os.path.join(os.environ['VMON_E2E_DIR'], 'data')
key = os.environ['E2B_API_KEY']


def call(method, path, body=None, headers=None):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=120)
    connection.request(method, path, body=json.dumps(body) if isinstance(body, dict) else body,
                       headers={'X-API-Key': key, 'Content-Type': 'application/json', **(headers or {})})
    response = connection.getresponse()
    payload = response.read()
    connection.close()
    return response.status, payload


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(round(p / 100 * (len(values) - 1))))]


def report(name, metrics, build_dir, tables=()):
    """Prints the metrics, as one JSON object with --json; the tables only for a person."""
    host = {'cpus': os.cpu_count(), 'kernel': platform.release(), 'machine': platform.machine(),
            'backend': json.load(open(os.path.join(build_dir, 'manifest.json')))['backend']}
    if '--json' in sys.argv:
        print(json.dumps({'name': name, 'metrics': metrics, 'host': host}))
        return
    for metric, value in metrics.items():
        print(f'{metric:40} {value}')
    for table in tables:
        print('\n' + table)
