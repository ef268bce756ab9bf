# SPDX-License-Identifier: Apache-2.0
"""Says which tests were skipped, and why, from the reports that ctest writes with --output-junit.

check_skips.py REPORT...            says all
check_skips.py --strict REPORT...   says those that tests/skips.txt does not list, and fails when there are any

A skipped case of GoogleTest or pytest leaves its program's test passed, so that ctest's own count misses it.
"""

import fnmatch
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from repo import ROOT

LIST = ROOT / "tests/skips.txt"
# The reason comes between the case's first line and its last.
CASE = re.compile(r"^\[ RUN      \] (\S+)\n((?:(?!^\[ RUN ).*\n)*?)\[  SKIPPED \] \1 \(", re.MULTILINE)

# What pytest -rs says of each.
PYTEST = re.compile(r"^SKIPPED \[\d+\] (\S+?): (.*)$", re.MULTILINE)


def allowed():
    lines = [line.split(maxsplit=1) for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        if len(line) != 2:
            sys.exit(f"{LIST.relative_to(ROOT)}: '{line[0]}' has no reason")
    return dict(lines)


def skipped(report):
    """(name, reason) of each case and each whole test that did not run."""
    for test in ElementTree.parse(report).getroot().iter("testcase"):
        output = test.findtext("system-out") or ""
        if test.get("status") in ("notrun", "disabled"):
            yield test.get("name"), output.strip().splitlines()[-1] if output.strip() else test.get("status")
        for name, text in CASE.findall(output):
            reasons = [line for line in text.splitlines() if line and not re.match(r"\S+: Skipped$|Skipped$", line)]
            yield name, reasons[0] if reasons else "no reason given"
        yield from PYTEST.findall(output)


def main():
    is_strict = "--strict" in sys.argv
    reports = [word for word in sys.argv[1:] if word != "--strict"]
    known = allowed()
    found = dict(pair for report in reports if Path(report).exists() for pair in skipped(report))
    if is_strict:
        found = {name: why for name, why in found.items() if not any(fnmatch.fnmatchcase(name, k) for k in known)}
    for name, reason in sorted(found.items()):
        print(f"  skipped {name}: {reason}{', and tests/skips.txt does not list it' if is_strict else ''}")
    sys.exit(1 if found and is_strict else 0)


if __name__ == "__main__":
    main()
