"""Checks docs/conformance.md: every item of the template API's checklist has one row, which names the tests that carry its number
in their title, or says why there is none. Prints what is wrong; nothing when all is well."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENT = os.path.join(ROOT, "docs", "conformance.md")
ITEMS = 240
NUMBER = r"(?:[A-Z]\d+\.\d+|\d+)"  # "D7.86" is an item of another list: skipped over
LEADING = re.compile(rf"\s*((?:{NUMBER}(?:-{NUMBER})?[\s,:]+)+)")


def expand(text):
    """"191-195, 202 D7.92" -> {191, …, 195, 202}."""
    found = set()
    for first, last in re.findall(r"(?<![.\w-])(\d+)(?:-(\d+))?(?![.\w])", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def python_titles(text):
    for name in re.findall(r"^    def test_(\w+)\(", text, re.M):
        numbers = re.match(r"(?:(?:\d+|to)_)*", name + "_")[0].strip("_")
        yield re.sub(r"(\d+)_to_(\d+)", r"\1-\2", numbers).replace("_", " ")


def script_titles(text):
    for _, title in re.findall(r"\btest\(\s*(['\"`])(.*?)\1", text):
        for part in title.split(";"):  # "203: one thing; 204: another"
            leading = LEADING.match(part + " ")
            if leading:
                yield leading[1].replace(":", " ").replace(",", " ")


def unit_titles(text):
    return re.findall(r"^/\* Items? ([\d, -]+)", text, re.M)


TITLES = {".py": python_titles, ".mjs": script_titles, ".c": unit_titles}


def numbers_in(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = f.read()
    return set().union(*(expand(t) for t in TITLES[os.path.splitext(path)[1]](text)))


def check_row(item, where):
    files = re.findall(r"`(tests/[\w./-]+)`", where)
    if not files:
        if not re.fullmatch(r"not here: .{10,}", where):
            yield f"item {item}: names no test and no reason ('not here: …')"
        return
    for path in files:
        if not os.path.isfile(os.path.join(ROOT, path)):
            yield f"item {item}: {path} does not exist"
        elif item not in numbers_in(path):
            yield f"item {item}: no title in {path} has its number"


def check():
    with open(DOCUMENT, encoding="utf-8") as f:
        rows = re.findall(r"^\| (\d+) \| .* \| ([^|]*) \|$", f.read(), re.M)
    items = [int(number) for number, _ in rows]
    if items != list(range(1, ITEMS + 1)):
        yield f"the table must have the items 1 to {ITEMS}, each once and in order; missing: {sorted(set(range(1, ITEMS + 1)) - set(items))}"
    for item, (_, where) in zip(items, rows):
        yield from check_row(item, where)


if __name__ == "__main__":
    problems = list(check())
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
