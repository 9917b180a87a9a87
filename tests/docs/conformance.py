"""Checks the tables of docs/conformance*.md: every item of a checklist has one row, which names the tests that carry its number in their
title, or says why there is none. Prints what is wrong; nothing when all is well."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The document, the letter before its numbers, and how many they are.
TABLES = [("docs/conformance.md", "", 240), ("docs/conformance-agent.md", "E", 267), ("docs/conformance-sandbox.md", "S", 125)]
NUMBER = r"[A-Z]?\d+(?:\.\d+)?"  # "D7.86" is an item of another list: skipped over
LEADING = re.compile(rf"\s*((?:{NUMBER}(?:-{NUMBER})?[\s,:]+)+)")


def expand(text, letter):
    """"191-195, 202 D7.92 E4" -> {191, …, 195, 202}, and with the letter E {4}."""
    found = set()
    for first, last in re.findall(rf"(?<![.\w-]){letter}(\d+)(?:-{letter}(\d+))?(?![.\w])", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def python_titles(text):
    for name in re.findall(r"^    (?:async )?def test_(\w+)\(", text, re.M):
        numbers = re.match(r"(?:(?:[a-z]?\d+|to)_)*", name + "_")[0].strip("_").upper()
        yield re.sub(r"(\d+)_TO_(\w?\d+)", r"\1-\2", numbers).replace("_", " ")


def script_titles(text):
    for _, title in re.findall(r"\btest\(\s*(['\"`])((?:\\.|(?!\1).)*)\1", text):
        for part in title.split(";"):  # "203: one thing; 204: another"
            leading = LEADING.match(part + " ")
            if leading:
                yield leading[1].replace(":", " ").replace(",", " ")


def unit_titles(text):
    return re.findall(r"^/\* Items? ([\w, -]+)", text, re.M)


TITLES = {".py": python_titles, ".mjs": script_titles, ".c": unit_titles}


def numbers_in(path, letter):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        text = f.read()
    return set().union(*(expand(t, letter) for t in TITLES[os.path.splitext(path)[1]](text)))


def check_row(item, letter, where):
    files = re.findall(r"`(tests/[\w./-]+)`", where)
    if not files:
        if not re.fullmatch(r"not here: .{10,}", where):
            yield f"item {letter}{item}: names no test and no reason ('not here: …')"
        return
    for path in files:
        if not os.path.isfile(os.path.join(ROOT, path)):
            yield f"item {letter}{item}: {path} does not exist"
        elif item not in numbers_in(path, letter):
            yield f"item {letter}{item}: no title in {path} has its number"


def check(document, letter, count):
    with open(os.path.join(ROOT, document), encoding="utf-8") as f:
        rows = re.findall(rf"^\| {letter}(\d+) \| .* \| ([^|]*) \|$", f.read(), re.M)
    items = [int(number) for number, _ in rows]
    if items != list(range(1, count + 1)):
        missing = sorted(set(range(1, count + 1)) - set(items))
        yield f"{document}: the table must have the items {letter}1 to {letter}{count}, each once and in order; missing: {missing}"
    for item, (_, where) in zip(items, rows):
        yield from check_row(item, letter, where)


if __name__ == "__main__":
    problems = [p for table in TABLES for p in check(*table)]
    print("\n".join(problems))
    sys.exit(1 if problems else 0)
