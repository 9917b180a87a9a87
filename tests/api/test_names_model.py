"""Random operations on names, tags, publishing and builds by several concurrent clients against a real server; the whole history of each
alias must be linearizable against the model of names_model.py. The seed is printed; VMON_SEED repeats one (the operations, not the
interleaving). VMON_SOAK=1 runs for ten minutes."""
import os
import random
import sys
import threading
import time
import unittest

import names_model
from server import RECORDS_TOOL, Server
from tool import Tool

TEAMS = ["acme", "globex", "sys1", "sys2"]
TAGS = ["default", "v1", "v2"]
CLIENTS = 6
STEPS = 60     # of a client in a round
ALIASES = 4    # in a round
ROUNDS = 3
SOAK_SECONDS = 600


class Client:
    """One client with a connection and a builder of its own. What it does is decided by its seed and by the builds that are known."""

    def __init__(self, test, seed, aliases, steps):
        self.thread = threading.Thread(target=self.run)
        self.test, self.random, self.aliases, self.steps = test, random.Random(seed), aliases, steps
        self.history, self.error = [], None

    def run(self):
        self.connection = self.test.server.connection()
        self.tool = Tool(RECORDS_TOOL, self.test.server.data)
        try:
            for _ in range(self.steps):
                self.step()
        except BaseException as e:  # re-raised by the test's thread
            self.error = e
        finally:
            self.tool.close()
            self.connection.close()

    def call(self, team, method, path, body=None):
        return self.test.server.request(method, path, body, key=self.test.keys[team], connection=self.connection)

    def step(self):
        alias = self.random.choice(self.aliases)
        name = self.random.choices(["create", "start", "ready", "fail", "assign", "untag", "tags", "delete", "publish", "own", "foreign", "bare",
                                    "status"], [8, 10, 10, 2, 4, 2, 4, 2, 5, 6, 3, 5, 4])[0]
        self.perform(alias, name)

    def perform(self, alias, name, **fixed):
        op = {"op": name, "team": self.random.choice(TEAMS), **fixed}
        if name in ("start", "ready", "fail", "status") and "build" not in op:
            known = self.test.builds[alias][-6:]  # the newest: others are finished
            if not known:
                return
            op["template"], op["build"] = self.random.choice(known)
        op["begin"] = time.monotonic_ns()
        op["out"] = getattr(self, name)(alias, op)
        op["end"] = time.monotonic_ns()
        self.history.append((alias, op))

    def expected(self, r, *statuses):
        if r.status not in statuses:
            raise AssertionError(f"unexpected answer {r.status}: {r.body}")
        return r.status

    def create(self, alias, op):
        op["tags"] = self.random.sample(TAGS, self.random.choice([1, 1, 2]))
        r = self.call(op["team"], "POST", "/v3/templates", {"name": alias, "tags": op["tags"]})
        self.expected(r, 202)
        self.test.owners[r.json["templateID"]] = op["team"]
        self.test.builds[alias].append((r.json["templateID"], r.json["buildID"]))
        return r.json["templateID"], r.json["buildID"]

    def start(self, alias, op):
        return self.tool.run("start", op["build"], refusals=("not in waiting state", "was deleted"))

    def ready(self, alias, op):
        return self.tool.run("ready", op["build"], refusals=("no longer building", "was deleted"))

    def fail(self, alias, op):
        return self.tool.run("fail", op["build"], reason="x")

    def assign(self, alias, op):
        op["target"], op["tag"] = self.random.choice(TAGS), self.random.choice(TAGS)
        r = self.call(op["team"], "POST", "/templates/tags", {"target": f"{op['team']}/{alias}:{op['target']}", "tags": [op["tag"]]})
        return r.json["buildID"] if self.expected(r, 201, 404) == 201 else 404

    def untag(self, alias, op):
        op["tag"] = self.random.choice(TAGS[1:])
        return self.expected(self.call(op["team"], "DELETE", "/templates/tags", {"name": f"{op['team']}/{alias}", "tags": [op["tag"]]}), 204, 404)

    def tags(self, alias, op):
        r = self.call(op["team"], "GET", f"/templates/{op['team']}%2F{alias}/tags")
        return {t["tag"]: t["buildID"] for t in r.json} if self.expected(r, 200, 404) == 200 else 404

    def delete(self, alias, op):
        return self.expected(self.call(op["team"], "DELETE", f"/templates/{op['team']}%2F{alias}"), 204, 404)

    def publish(self, alias, op):
        op.setdefault("public", self.random.random() < 0.6)
        return self.expected(self.call(op["team"], "PATCH", f"/v2/templates/{op['team']}%2F{alias}", {"public": op["public"]}), 200, 404)

    def own(self, alias, op):
        op.setdefault("tag", self.random.choice([None] + TAGS))
        tag = f"%3A{op['tag']}" if op["tag"] else ""
        r = self.call(op["team"], "GET", f"/templates/aliases/{op['team']}%2F{alias}{tag}")
        return r.json["templateID"] if self.expected(r, 200, 404) == 200 else 404

    def foreign(self, alias, op):
        return self.expected(self.call("reader", "GET", f"/templates/aliases/{op['team']}%2F{alias}"), 403, 404)

    def bare(self, alias, op):
        return self.expected(self.call("reader", "GET", f"/templates/aliases/{alias}"), 403, 404)

    def status(self, alias, op):
        r = self.call(self.test.owners[op["template"]], "GET", f"/templates/{op['template']}/builds/{op['build']}/status")
        return r.json["status"] if self.expected(r, 200, 400) == 200 else 400


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server().start()
        cls.addClassCleanup(cls.server.stop)
        cls.keys = {team: cls.server.team(team, "--max-concurrent-builds", "1000", *(["--system"] if team.startswith("sys") else []))
                    for team in TEAMS + ["reader"]}

    def round(self, seed, number):
        """One round with aliases of its own; the histories of its aliases."""
        aliases = [f"m{number}-{i}" for i in range(ALIASES)]
        self.builds, self.owners = {a: [] for a in aliases}, {}
        clients = [Client(self, f"{seed}/{number}/{i}", aliases, STEPS) for i in range(CLIENTS)]
        for c in clients:
            c.thread.start()
        for c in clients:
            c.thread.join()
            if c.error:
                raise c.error
        auditor = Client(self, f"{seed}/{number}/audit", aliases, 0)  # what is left must agree too
        auditor.connection = self.server.connection()
        for alias in aliases:
            for team in TEAMS:
                auditor.perform(alias, "tags", team=team)
                for tag in [None] + TAGS:
                    auditor.perform(alias, "own", team=team, tag=tag)
            auditor.perform(alias, "bare")
            for template, build in self.builds[alias]:
                auditor.perform(alias, "status", template=template, build=build)
        auditor.connection.close()
        history = {a: [] for a in aliases}
        for c in clients + [auditor]:
            for alias, op in c.history:
                history[alias].append(op)
        return history

    def test_histories_are_linearizable(self):
        seed = os.environ.get("VMON_SEED") or str(random.SystemRandom().randrange(2 ** 32))
        print(f"seed: VMON_SEED={seed}", file=sys.stderr)
        until = time.monotonic() + SOAK_SECONDS if os.environ.get("VMON_SOAK") == "1" else 0
        number = operations = overlapping = 0
        while number < ROUNDS or time.monotonic() < until:
            for alias, history in self.round(seed, number).items():
                problem = names_model.check(history)
                if problem:
                    self.fail(f"VMON_SEED={seed}, alias {alias}: no order explains the history; the longest explained part and what then does not "
                              "fit:\n" + "\n".join(str(o) for o in problem[-30:]))
                operations += len(history)
                ends = sorted(history, key=lambda o: o["begin"])
                overlapping += sum(a["end"] > b["begin"] for a, b in zip(ends, ends[1:]))
            number += 1
        print(f"{operations} operations, {overlapping} of them began before the one before had ended", file=sys.stderr)
        self.assertGreater(overlapping, 50)  # else nothing concurrent was tested


class Model(unittest.TestCase):
    """The checker itself: histories that must be refused."""

    def history(self, *ops):
        return [{"begin": 2 * i, "end": 2 * i + 1, **op} for i, op in enumerate(ops)]

    CREATE = {"op": "create", "team": "acme", "tags": ["v1"], "out": ("t", "b")}
    START = {"op": "start", "build": "b", "out": True}
    READY = {"op": "ready", "build": "b", "out": True}

    def test_sequence(self):
        tags = {"op": "tags", "team": "acme", "out": {"v1": "b"}}
        self.assertIsNone(names_model.check(self.history(self.CREATE, self.START, self.READY, tags)))
        self.assertIsNotNone(names_model.check(self.history(self.CREATE, self.START, tags, self.READY)))
        self.assertIsNotNone(names_model.check(self.history(self.CREATE, self.READY)))

    def test_overlap(self):
        """A read beside a change may see it or not; two in a row may not see it and then no longer."""
        ops = self.history(self.CREATE, self.START, self.READY)
        ops[2]["end"] = 100
        seen = {"op": "own", "team": "acme", "tag": "v1", "out": "t"}
        not_seen = {**seen, "out": 404}
        self.assertIsNone(names_model.check(ops + [{**not_seen, "begin": 10, "end": 11}, {**seen, "begin": 12, "end": 13}]))
        self.assertIsNotNone(names_model.check(ops + [{**seen, "begin": 10, "end": 11}, {**not_seen, "begin": 12, "end": 13}]))

    def test_bare_alias_has_one_holder(self):
        def publish(team, public=True):
            return {"op": "publish", "team": team, "public": public, "out": 200}

        def made(team, n):
            return {"op": "create", "team": team, "tags": ["v1"], "out": (f"t{n}", f"b{n}")}

        bare = {"op": "bare", "out": 403}
        start = [made("sys1", 1), made("sys2", 2), publish("sys1"), publish("sys2"), publish("sys1", False)]
        self.assertIsNone(names_model.check(self.history(*start, {"op": "bare", "out": 404})))
        self.assertIsNotNone(names_model.check(self.history(*start, bare)))
        self.assertIsNone(names_model.check(self.history(*start, publish("sys2"), bare)))


if __name__ == "__main__":
    unittest.main()
