# SPDX-License-Identifier: Apache-2.0
"""docs/reference/faults.md names, for each known fault, the tests that guard against it.

A test joins by its name: TEST(ParityTest, Fault020_GroupOfOneIsAnIdentity), in Python
def test_fault020_a_group_of_one_is_an_identity. The column of tests is
generated; --fix writes it. A test with an unknown id, and a stale column, are findings.
"""

import re
import sys

from repo import ROOT, files, finish, where

PAGE = ROOT / "docs/reference/faults.md"
TEST = re.compile(r"^\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)
PYTHON_TEST = re.compile(r"^def (test_fault(\d{3})_\w+)\(", re.MULTILINE)
FAULT = re.compile(r"Fault(\d{3})_")
ROW = re.compile(r"^(\| (\d+) \|.*\|) [^|]* \|$")


def tests_by_fault():
    """fault number -> ["Suite.Name", ...], and where each was seen."""
    found, places = {}, {}
    for path in files("tests/*.cpp"):
        text = path.read_text()
        for match in TEST.finditer(text):
            for number in FAULT.findall(match.group(2)):
                found.setdefault(int(number), []).append(f"{match.group(1)}.{match.group(2)}")
                places.setdefault(int(number), where(path, text[: match.start()].count("\n") + 1))
    for path in files("tests/python/test_*.py"):
        text = path.read_text()
        for match in PYTHON_TEST.finditer(text):
            found.setdefault(int(match[2]), []).append(f"{path.stem}.{match[1]}")
            places.setdefault(int(match[2]), where(path, text[: match.start()].count("\n") + 1))
    return found, places


def main():
    if not PAGE.exists():
        finish([f"{PAGE.relative_to(ROOT)} is missing"])
    tests, places = tests_by_fault()
    lines, listed = [], set()
    for line in PAGE.read_text().splitlines():
        match = ROW.match(line)
        if match:
            number = int(match.group(2))
            listed.add(number)
            names = "<br>".join(f"`{name}`" for name in sorted(set(tests.get(number, [])))) or "open"
            line = f"{match.group(1)} {names} |"
        lines.append(line)
    wanted = "\n".join(lines) + "\n"
    findings = [f"{places[n]}: fault {n} is not in docs/reference/faults.md" for n in tests if n not in listed]
    if wanted != PAGE.read_text():
        if "--fix" in sys.argv:
            PAGE.write_text(wanted)
        else:
            findings.append("docs/reference/faults.md: the column of tests is stale; ./dev lint --fix writes it")
    finish(findings)


if __name__ == "__main__":
    main()
