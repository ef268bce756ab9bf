# SPDX-License-Identifier: Apache-2.0
"""What a selection of tests needs, for ./dev test.

select_tests.py targets BUILD < names   prints what to build for these tests of ctest (the lines of
                                        ctest -N), one file of BUILD or target per line
select_tests.py cases BUILD PATTERN...  prints, per test program that has such a case of GoogleTest, the
                                        program and its filter; a pattern is Suite, Suite.Name or holds * and ?
"""

import difflib
import fnmatch
import json
import re
import sys
from pathlib import Path

ADD_TEST = re.compile(r"^add_test\(\[=\[(.*?)\]=\] (.*)\)$", re.MULTILINE)
PROPERTIES = re.compile(r"^set_tests_properties\(\[=\[(.*?)\]=\] PROPERTIES (.*)\)$", re.MULTILINE)
CASE = re.compile(r"^\s*(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+)\s*,\s*(\w+)", re.MULTILINE)
# Tests of these labels read the sources, or build for themselves.
NOTHING_TO_BUILD = {"lint", "docs"}
# Tests of these labels run something that their command does not name.
ALSO_BUILT = {"python": {"fsdp_python", "fsdp_app"}}


def commands(build):
    """ctest's name -> (files of BUILD that its command or environment names, labels)."""
    found = {}
    for path in build.rglob("CTestTestfile.cmake"):
        text = path.read_text()
        properties = dict(PROPERTIES.findall(text))
        for name, command in ADD_TEST.findall(text):
            labels = re.search(r'LABELS "([^"]*)"', properties.get(name, ""))
            found[name] = (programs(command, build), set(labels.group(1).split(";")) if labels else set())
    return found


def programs(command, build):
    """The words of a command that are programs of BUILD, as ninja names them."""
    return re.findall(rf'"{re.escape(str(build.resolve()))}/(bin/[^"/]+)"', command)


def targets(build, listing):
    known, wanted = commands(build), set()
    for name in re.findall(r"^\s*Test\s+#\d+: (\S+)", listing, re.MULTILINE):
        binaries, labels = known[name]
        binaries = set(binaries).union(*(ALSO_BUILT.get(label, ()) for label in labels))
        if binaries:
            wanted.update(binaries)
        elif not labels & NOTHING_TO_BUILD:
            return ["all"]
    # The files are targets of ninja only.
    return sorted(wanted) if (build / "build.ninja").exists() or not wanted else ["all"]


def cases_by_program(build):
    """bin/x_test -> {(suite, name)} of its sources."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        owner = re.search(r"CMakeFiles/([^/]+)\.dir/", entry.get("output") or entry["command"])
        if "tests" in path.parts and path.exists() and owner:
            found.setdefault(f"bin/{owner.group(1)}", set()).update(CASE.findall(path.read_text()))
    return found


def filter_of(pattern):
    """The filter for a case whether it has parameters of values, of types, both or none."""
    suite, _, name = pattern.partition(".")
    name = name or "*"
    both = [(suite, name), (suite, f"{name}/*"), (f"{suite}/*", name)]
    return ":".join(f"{prefix}{s}.{n}" for prefix in ("", "*/") for s, n in both)


def cases(build, patterns):
    found = cases_by_program(build)
    plan = {}
    for pattern in patterns:
        suite, _, name = pattern.partition(".")
        hits = [
            program
            for program, of_program in sorted(found.items())
            if any(fnmatch.fnmatchcase(s, suite) and fnmatch.fnmatchcase(n, name or "*") for s, n in of_program)
        ]
        if not hits:
            everything = {f"{s}.{n}" for of_program in found.values() for s, n in of_program}
            everything |= {s for of_program in found.values() for s, _ in of_program}
            near = difflib.get_close_matches(pattern, sorted(everything), 3, 0.6)
            hint = f"; near it: {', '.join(near)}" if near else ""
            sys.exit(f"dev: no test case matches '{pattern}'{hint}. ./dev test -R x selects by the program's name.")
        for program in hits:
            plan.setdefault(program, []).append(filter_of(pattern))
    return [f"{program}\t{':'.join(filters)}" for program, filters in plan.items()]


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    lines = targets(folder, sys.stdin.read()) if sys.argv[1] == "targets" else cases(folder, sys.argv[3:])
    print("\n".join(lines), end="\n" if lines else "")
