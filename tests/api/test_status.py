"""template-api 18.7: status and logs of builds. What a builder would report comes from records-tool."""
import concurrent.futures
import re
import time
import unittest

from template_case import UNKNOWN, UNKNOWN_TEMPLATE, TemplateCase

LEVELS = ["debug", "info", "warn", "error"]
T0 = (int(time.time()) - 3600) * 1000  # of the first line, in ms


class Status(TemplateCase):
    def logged(self, count, name="st", **entry):
        """A running build with `count` lines, a second apart, their levels in turn."""
        b = self.started(name)
        self.log(b, [{"time_ms": T0 + i * 1000, "level": i % 4, "message": f"line {i}", **entry} for i in range(count)])
        return b

    def log(self, b, entries):
        self.server.records("log", b["buildID"], entries=entries)

    def messages(self, b, query=""):
        return [e["message"] for e in self.status(b, query)["logEntries"]]

    def pages(self, b, query, step):
        """All messages, read as an SDK does."""
        all_ = []
        while True:
            page = self.messages(b, f"?logsOffset={len(all_)}&limit={step}{query}")
            if not page:
                return all_
            all_ += page

    def test_104_right_after_create(self):
        b = self.create("st")
        self.assertEqual(self.status(b), {"templateID": b["templateID"], "buildID": b["buildID"], "status": "waiting", "logs": [], "logEntries": []})
        self.assertEqual(self.messages(b, "?logsOffset=1000&limit=100&level=warn"), [])

    def test_105_while_running(self):
        b = self.logged(3)
        r = self.status(b)
        self.assertEqual((r["status"], r["logs"], "reason" in r), ("building", [], False))
        self.assertEqual([e["message"] for e in r["logEntries"]], ["line 0", "line 1", "line 2"])

    def test_106_offset(self):
        b = self.logged(10)
        self.assertEqual(self.messages(b, "?logsOffset=7"), ["line 7", "line 8", "line 9"])
        self.assertEqual(self.messages(b, "?logsOffset=1&level=warn"), ["line 3", "line 6", "line 7"])

    def test_107_offset_beyond_the_end(self):
        b = self.logged(3)
        self.server.records("ready", b["buildID"])
        for offset in [3, 4, 2 ** 31 - 1]:
            r = self.status(b, f"?logsOffset={offset}")
            self.assertEqual((r["status"], r["logEntries"]), ("ready", []))

    def test_108_pages(self):
        b = self.logged(257)
        first = self.messages(b)
        self.assertEqual(first, [f"line {i}" for i in range(100)])
        for step in [1, 7, 100]:
            self.assertEqual(self.pages(b, "", step), [f"line {i}" for i in range(257)])

    def test_109_limit(self):
        b = self.logged(10)
        self.assertEqual(len(self.messages(b, "?limit=5")), 5)
        self.assertEqual(self.messages(b, "?limit=0"), [])
        for bad in ["101", "-1", "x", "1.5", ""]:
            self.expect(400, "GET", self.build_path(b) + f"?limit={bad}", message="validation error")

    def test_110_level(self):
        b = self.logged(257)
        for i, level in enumerate(LEVELS):
            want = [f"line {n}" for n in range(257) if n % 4 >= i]
            self.assertEqual(self.pages(b, f"&level={level}", 10), want)
        self.assertEqual({e["level"] for e in self.status(b, "?level=warn")["logEntries"]}, {"warn", "error"})

    def test_111_unknown_level(self):
        b = self.create("st")
        for level in ["trace", "INFO", "", "0"]:
            self.expect(400, "GET", self.build_path(b) + f"?level={level}", message="validation error")

    def test_112_bad_offset(self):
        b = self.create("st")
        for bad in ["-1", "x", str(2 ** 31), ""]:
            self.expect(400, "GET", self.build_path(b) + f"?logsOffset={bad}", message="validation error")

    def test_113_build_id_is_no_uuid(self):
        b = self.create("st")
        for rest in ["status", "logs"]:
            r = self.expect(400, "GET", self.build_path({**b, "buildID": "x"}, rest))
            self.assertEqual(r.message, "Invalid build id")

    def test_114_unknown_build(self):
        b, other = self.create("st"), self.create("st2")
        for wrong in [{**b, "buildID": UNKNOWN}, {**b, "templateID": other["templateID"]}, {**b, "templateID": UNKNOWN_TEMPLATE}, {**b, "templateID": "st"}]:
            for rest in ["status", "logs"]:
                r = self.expect(400, "GET", self.build_path(wrong, rest))
                self.assertEqual(r.message, f"Build '{wrong['buildID']}' not found")

    def test_115_another_team(self):
        b = self.create("st")
        self.publish("st")
        for rest in ["status", "logs"]:
            r = self.expect(403, "GET", self.build_path(b, rest), key=self.G)
            self.assertEqual(r.message, f"You don't have access to this sandbox template ({b['templateID']})")

    def test_116_failed_step(self):
        b = self.logged(2, step="2")
        self.log(b, [{"time_ms": T0, "level": 2, "step": "2", "message": "warned"}, {"time_ms": T0, "level": 3, "step": "1", "message": "other"},
                     {"time_ms": T0, "level": 1, "step": "2", "message": "told"}])
        self.server.records("fail", b["buildID"], reason="failed to run command 'make': exit status 2", step="2")
        r = self.status(b)
        self.assertEqual((r["status"], r["reason"]["message"], r["reason"]["step"]), ("error", "failed to run command 'make': exit status 2", "2"))
        self.assertEqual([e["message"] for e in r["reason"]["logEntries"]], ["warned"])  # of this page, this step, warn and above

    def test_d7_91_tail_of_the_log(self):
        """5,000 lines in a build's last second, read by pages of 100 after its end."""
        b = self.started("d7-91")
        self.log(b, [{"time_ms": T0 + i // 5, "level": 1, "message": f"line {i}"} for i in range(5000)])
        self.server.records("ready", b["buildID"])
        self.assertEqual(self.status(b)["status"], "ready")
        self.assertEqual(self.pages(b, "", 100), [f"line {i}" for i in range(5000)])
        self.assertEqual(self.pages(b, "&level=error", 100), [])

    def test_d7_88_polled_from_before_the_start(self):
        """1,000 builds, each polled without a pause from its registration to its end: only steps forward, never an error of the poll."""
        key, count, order = self.server.team("poller", "--max-concurrent-builds", "100"), 1000, ["waiting", "building", "ready"]
        seen = {state: 0 for state in order}

        def poll(builds):
            connection = self.server.connection()
            last = {b["buildID"]: 0 for b in builds}
            while any(n < 2 for n in last.values()):
                for b in builds:
                    r = self.call("GET", self.build_path(b), key=key, connection=connection)
                    self.assertEqual(r.status, 200, r.body)
                    at = order.index(r.json["status"])  # "error" is no step of this
                    self.assertGreaterEqual(at, last[b["buildID"]])
                    last[b["buildID"]] = at
                    seen[order[at]] += 1
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for at in range(0, count, 50):
                builds = [self.create(f"poll{at + i}", key) for i in range(50)]
                polls = [pool.submit(poll, builds[half::2]) for half in range(2)]
                for b in builds:
                    self.server.records("start", b["buildID"])
                    self.server.records("ready", b["buildID"])
                for p in polls:
                    p.result(timeout=120)
        self.assertTrue(all(seen.values()), seen)

    def test_117_118_steps_of_reasons(self):
        for step in ["base", "finalize"]:
            b = self.started(f"why-{step}")
            self.server.records("fail", b["buildID"], reason="x", step=step)
            self.assertEqual(self.status(b)["reason"], {"message": "x", "step": step, "logEntries": []})

    def test_119_cancelled_has_no_step(self):
        b = self.started("st119")
        self.expect(204, "DELETE", "/templates/st119")  # its status is gone with it
        self.expect(400, "GET", self.build_path(b))
        b = self.started("st119")
        self.server.records("fail", b["buildID"], reason="build was cancelled")
        self.assertEqual(self.status(b)["reason"], {"message": "build was cancelled", "logEntries": []})

    def test_120_entries(self):
        b = self.started("st")
        self.log(b, [{"time_ms": T0 + 120, "level": level, "message": "m", **({"step": step} if step else {})}
                     for level in range(4) for step in [None, "base", "finalize", "17"]])
        entries = self.status(b)["logEntries"]
        self.assertEqual(len(entries), 16)
        for e in entries:
            self.assertLessEqual(set(e), {"timestamp", "level", "message", "step"})
            self.assertRegex(e["timestamp"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.12\d*Z$")
            self.assertIn(e["level"], LEVELS)
            self.assertTrue(re.fullmatch(r"base|finalize|[1-9][0-9]*", e.get("step", "base")))

    def test_122_logs_forward(self):
        b = self.logged(300)
        path = self.build_path(b, "logs")

        def get(query=""):
            return [e["message"] for e in self.expect(200, "GET", path + query).json["logs"]]

        self.assertEqual(get(), [f"line {i}" for i in range(100)])
        self.assertEqual(get(f"?cursor={T0 + 250_000}"), [f"line {i}" for i in range(250, 300)])
        self.assertEqual(get(f"?cursor={T0 + 249_001}&limit=2"), ["line 250", "line 251"])
        self.assertEqual(get(f"?cursor={T0 + 300_000}"), [])
        self.assertEqual(get(f"?cursor={T0 + 250_000}&level=error&limit=2"), ["line 251", "line 255"])
        self.assertEqual(get("?source=temporary&limit=1"), ["line 0"])
        self.assertEqual(get("?direction=forward&source=persistent&limit=1"), ["line 0"])

    def test_123_logs_backward(self):
        b = self.logged(300)
        path = self.build_path(b, "logs") + "?direction=backward"

        def get(query=""):
            return [e["message"] for e in self.expect(200, "GET", path + query).json["logs"]]

        self.assertEqual(get(), [f"line {i}" for i in range(299, 199, -1)])
        self.assertEqual(get(f"&cursor={T0 + 50_000}&limit=3"), ["line 50", "line 49", "line 48"])
        self.assertEqual(get(f"&cursor={T0 + 49_999}&limit=1"), ["line 49"])
        self.assertEqual(get(f"&cursor={T0 - 1}"), [])
        self.assertEqual(get("&level=error&limit=2"), ["line 299", "line 295"])

    def test_122_123_queries(self):
        path = self.build_path(self.create("st"), "logs")
        self.assertEqual(self.expect(200, "GET", path).json, {"logs": []})
        for query in ["direction=up", "source=disk", "cursor=-1", "cursor=x", "limit=101", "limit=-1", "level=trace", "cursor=" + "9" * 30]:
            self.expect(400, "GET", path + "?" + query, message="validation error")

    def test_124_after_a_restart(self):
        b = self.logged(150)
        self.server.records("ready", b["buildID"])
        self.server.kill()
        self.server.start()
        self.assertEqual(self.pages(b, "", 100), [f"line {i}" for i in range(150)])

    def test_deleted(self):
        """template-api 16.3."""
        b = self.create("gone")
        self.expect(204, "DELETE", "/templates/gone")
        for rest in ["status", "logs"]:
            r = self.expect(400, "GET", self.build_path(b, rest))
            self.assertEqual(r.message, f"Build '{b['buildID']}' not found")


if __name__ == "__main__":
    unittest.main()
