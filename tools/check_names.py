# SPDX-License-Identifier: Apache-2.0
"""Members that pages and the comments of public headers name exist: `Options::memory`, `world.rank()`.

A name is looked for in the headers, and the modules of Python, that declare its type, so that a renamed or
removed member is found in every text that still speaks of it. Decisions and the changelog speak of their
time and are left out; so are the fault table, whose names are those of tests, and members of LibTorch
(`at::Tensor::grad()`).
"""

import re

from repo import ROOT, files, finish, where

TIMELESS = re.compile(
    r"^(README|CONTRIBUTING)\.md$|^docs/(index\.md|tutorials/|how-to/|explanation/|reference/(?!faults\.md))"
)
DECLARATION = re.compile(r"\b(?:class|struct|enum class)\s+(\w+)\b(?!;)")
MEMBER = re.compile(r"(?<!at::)(?<!nn::)(?<!torch::)\b([A-Za-z]\w+)(?:::|\.)(\w+)")
# Variables that all pages use; a header has its own.
VARIABLES = {"sharded": "Sharded", "world": "World", "options": "Options"}


def declared():
    """type -> all words of code in the headers that declare a type of that name."""
    found = {}
    for path in files("include/*.hpp", "src/*.hpp"):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        for match in DECLARATION.finditer(text):
            found.setdefault(match[1], set()).update(re.findall(r"\w+", text))
    for path in files("python/fsdp/*.py"):
        text = path.read_text()
        for match in re.finditer(r"^class (\w+)", text, re.MULTILINE):
            found.setdefault(match[1], set()).update(re.findall(r"\bdef (\w+)", text))
    return found


def texts():
    """(place, text) of each inline code of a page and of each line of comment in a public header."""
    for page in files("*.md"):
        if not TIMELESS.search(page.relative_to(ROOT).as_posix()):
            continue
        is_block = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            is_block ^= line.startswith("```")
            if not is_block:
                yield from ((where(page, number), code) for code in re.findall(r"`([^`]+)`", line))
    for header in files("include/*.hpp"):
        for number, line in enumerate(header.read_text().splitlines(), 1):
            comment = re.search(r"//[^\"]*$", line)
            if comment:
                yield where(header, number), comment[0]


def main():
    known, findings = declared(), []
    for place, text in texts():
        for match in MEMBER.finditer(text):
            owner = match[1] if place.startswith("include/") else VARIABLES.get(match[1], match[1])
            if owner in known and match[2] not in known[owner] and not match[2].isdigit():
                findings.append(f"{place}: {owner} has no member {match[2]}")
    finish(findings)


if __name__ == "__main__":
    main()
