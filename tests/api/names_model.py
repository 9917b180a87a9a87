"""What template-api 15 and 16 say about one alias, as a sequential model, and a check that a concurrent history of it is linearizable.

Everything that the operations of test_names_model.py do concerns one alias (in the namespaces of all teams, and bare), so each alias is
a history of its own. State of an alias: {"holder": template or None, "of": {team: template}, "templates": {template: {team,
public, builds, tags, latest}}, "dead": templates}; apply() says whether an observed outcome is possible in a state, and what follows.
"""
import copy

SYSTEM = {"sys1", "sys2"}


class Alias:
    def __init__(self):
        self.of = {}         # team -> template ID
        self.templates = {}  # template ID -> {"team", "public", "builds": {build: [state, tags]}, "tags": {tag: build}, "latest"}
        self.dead = set()    # build IDs of deleted templates
        self.holder = None   # template ID that has the bare alias

    def copy(self):
        return copy.deepcopy(self)

    def key(self):
        def freeze(x):
            if isinstance(x, dict):
                return tuple(sorted((k, freeze(v)) for k, v in x.items()))
            return tuple(freeze(v) for v in x) if isinstance(x, list) else x
        return freeze(self.of), freeze(self.templates), frozenset(self.dead), self.holder

    def build(self, build):
        for t in self.templates.values():
            if build in t["builds"]:
                return t, t["builds"][build]
        return None, None

    def resolve(self, t, tag):
        """The ready build that a tag of a template names; None when there is none."""
        build = t["tags"].get(tag)
        if build is None and tag == "default":
            build = t["latest"]
        return build


def op_create(s, op, out):
    template, build = out
    mine = s.of.get(op["team"])
    if mine is None:
        if template in s.templates:
            return False
        s.of[op["team"]] = template
        s.templates[template] = {"team": op["team"], "public": False, "builds": {}, "tags": {}, "latest": None}
    elif mine != template:
        return False
    t = s.templates[template]
    for b in t["builds"].values():
        if b[0] == "waiting" and set(b[1]) & set(op["tags"]):
            b[0] = "error"
    t["builds"][build] = ["waiting", list(op["tags"])]
    return True


def op_start(s, op, out):
    _, b = s.build(op["build"])
    moves = b is not None and b[0] == "waiting"
    if moves:
        b[0] = "building"
    return out == moves


def op_ready(s, op, out):
    t, b = s.build(op["build"])
    moves = b is not None and b[0] == "building"
    if moves:
        b[0] = "ready"
        t["latest"] = op["build"]
        for tag in b[1]:
            t["tags"][tag] = op["build"]
    return out == moves


def op_fail(s, op, out):
    _, b = s.build(op["build"])
    if b is not None and b[0] in ("waiting", "building"):
        b[0] = "error"
    return out is True


def op_assign(s, op, out):
    t = s.templates.get(s.of.get(op["team"]))
    build = t["tags"].get(op["target"]) if t else None
    if build is None:
        return out == 404
    t["tags"][op["tag"]] = build
    return out == build


def op_untag(s, op, out):
    t = s.templates.get(s.of.get(op["team"]))
    if t is None:
        return out == 404
    t["tags"].pop(op["tag"], None)
    return out == 204


def op_tags(s, op, out):
    t = s.templates.get(s.of.get(op["team"]))
    return out == (404 if t is None else t["tags"])


def op_delete(s, op, out):
    template = s.of.pop(op["team"], None)
    if template is None:
        return out == 404
    s.dead |= set(s.templates.pop(template)["builds"])
    if s.holder == template:
        s.holder = None
    return out == 204


def op_publish(s, op, out):
    template = s.of.get(op["team"])
    if template is None:
        return out == 404
    s.templates[template]["public"] = op["public"]
    if not op["public"] and s.holder == template:
        s.holder = None
    if op["public"] and op["team"] in SYSTEM and s.holder is None:
        s.holder = template
    return out == 200


def op_own(s, op, out):
    """GET /templates/aliases/<slug>/<alias>[:tag] by its team: a tag that is written out needs a ready build."""
    t = s.templates.get(s.of.get(op["team"]))
    if t is None or (op["tag"] and s.resolve(t, op["tag"]) is None):
        return out == 404
    return out == s.of[op["team"]]


def op_foreign(s, op, out):
    """The same of a team by another one: D7."""
    return out == (403 if op["team"] in s.of else 404)


def op_bare(s, op, out):
    """The bare alias for a team that has no template of that name."""
    return out == (403 if s.holder else 404)


def op_status(s, op, out):
    _, b = s.build(op["build"])
    return out == (400 if b is None else b[0])


OPS = {name[3:]: f for name, f in globals().items() if name.startswith("op_")}


def check(history):
    """`history`: {"op", "begin", "end", "out", …}. None when some order that respects time explains every outcome; else the longest
    explained prefix of one, for the report."""
    ops = sorted(history, key=lambda o: o["begin"])
    best, seen = [], set()
    stack = [(Alias(), frozenset(), [])]
    while stack:
        state, done, order = stack.pop()
        if len(order) == len(ops):
            return None
        if len(order) > len(best):
            best = order
        left = [i for i in range(len(ops)) if i not in done]
        first_end = min(ops[i]["end"] for i in left)
        for i in reversed(left):
            if ops[i]["begin"] > first_end:
                continue
            after = state.copy()
            if not OPS[ops[i]["op"]](after, ops[i], ops[i]["out"]):
                continue
            next_done = done | {i}
            mark = (next_done, after.key())
            if mark not in seen:
                seen.add(mark)
                stack.append((after, next_done, order + [ops[i]]))
    return best + [{"op": "unexplained", "candidates": [o for o in ops if o not in best][:8]}]
