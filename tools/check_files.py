# SPDX-License-Identifier: Apache-2.0
"""Small rules for files: licence line, length, trailing space, the frozen list of headers, and that
the documentation names every environment variable that the sources read.

--fix rewrites tests/golden/public_headers.txt.
"""

import re
import sys

from repo import ROOT, cpp_files, files, finish, where

LICENCE = "SPDX-License-Identifier: Apache-2.0"
LONG = 450
HEADERS = ROOT / "tests/golden/public_headers.txt"


def without_licence_line():
    scripts = files("dev", ".ci/run", "*.sh", "*.py", "*.cmake", "CMakeLists.txt", "*/CMakeLists.txt")
    for path in cpp_files() + scripts:
        head = path.read_text().splitlines()[:3]
        if not any(LICENCE in line for line in head):
            yield f"{where(path, 1)}: the first lines lack '{LICENCE}'"


def trailing_space():
    for path in cpp_files() + files("dev", "*.sh", "*.py", "*.cmake", "*CMakeLists.txt", "*.md", "*.yml"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line != line.rstrip():
                yield f"{where(path, number)}: space at the end of the line"


def header_list(fix):
    public = sorted(
        path.relative_to(ROOT / "include").as_posix() for path in files("include/*.hpp")
    )
    text = "".join(f"{name}\n" for name in public)
    if fix:
        HEADERS.write_text(text)
        return
    listed = HEADERS.read_text().split()
    place = HEADERS.relative_to(ROOT)
    for name in sorted(set(public) - set(listed)):
        yield f"{place}: lacks {name}; ./dev lint --fix adds it, and the change of the API is visible"
    for name in sorted(set(listed) - set(public)):
        yield f"{place}: lists {name}, which does not exist"


def undocumented_variables():
    page = (ROOT / "docs/reference/environment.md").read_text()
    for path in files("src/*.cpp", "apps/*.cpp"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name in re.findall(r'"(FSDP_[A-Z_]+)"', line):
                if f"`{name}`" not in page:
                    yield f"{where(path, number)}: docs/reference/environment.md does not name {name}"


def warn_of_long_files():
    for path in cpp_files() + files("*.py", "*.sh", "dev"):
        lines = len(path.read_text().splitlines())
        if lines > LONG:
            print(f"{where(path, 1)}: warning: {lines} lines; more than {LONG} need a reason")


if __name__ == "__main__":
    found = list(header_list("--fix" in sys.argv))
    warn_of_long_files()
    finish(found + list(without_licence_line()) + list(trailing_space()) + list(undocumented_variables()))
