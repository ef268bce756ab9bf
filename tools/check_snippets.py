# SPDX-License-Identifier: Apache-2.0
"""C++ in README.md and docs/.

A block that quotes an example names it in a comment above, and must equal that section of it:

    <!-- quote examples/first_module.cpp shard -->

--fix writes the section into the page. All other blocks are compiled: --compile FILE writes a
translation unit with one function per block, over what tests/docs/preamble.hpp declares. What a block
needs beyond that stands in a comment above it, which readers do not see:

    <!-- given
    std::vector<Batch> batches;
    -->
"""

import re
import sys
import textwrap
from pathlib import Path

from repo import ROOT, files, finish, where

BLOCK = re.compile(r"(?P<notes>(?:^<!--(?:(?!-->)[^\0])*?-->\n)*)^```cpp\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTE = re.compile(r"<!-- quote (\S+) (\S+) -->")
GIVEN = re.compile(r"<!-- given\n(.*?)-->", re.DOTALL)


def pages():
    return files("README.md", "docs/*.md")


def section(path, name):
    """The lines of an example between its markers, or None."""
    marked = re.search(
        rf"^ *// begin {re.escape(name)}\n(.*?)^ *// end {re.escape(name)}$", path.read_text(), re.MULTILINE | re.DOTALL
    )
    return textwrap.dedent(marked.group(1)) if marked else None


def check_quotes(fix):
    findings = []
    for page in pages():
        text = page.read_text()

        def quoted(block, page=page, text=text):
            named = QUOTE.search(block["notes"])
            if not named:
                return block[0]
            place = where(page, text[: block.start("code")].count("\n"))
            path = ROOT / named[1]
            wanted = section(path, named[2]) if path.is_file() else None
            if wanted is None:
                findings.append(f"{place}: {named[1]} has no section {named[2]}")
            elif wanted != block["code"] and not fix:
                findings.append(f"{place}: differs from {named[1]}, section {named[2]}; ./dev lint --fix copies it")
            return block[0] if wanted is None else f"{block['notes']}```cpp\n{wanted}```"

        wanted = BLOCK.sub(quoted, text)
        if fix and wanted != text:
            page.write_text(wanted)
    return findings


def compilable():
    """One function per block that is not quoted, with the page's own line numbers."""
    yield '#include "docs/preamble.hpp"\n'
    for page in pages():
        text = page.read_text()
        place = page.relative_to(ROOT)
        for block in BLOCK.finditer(text):
            if QUOTE.search(block["notes"]):
                continue
            line = text[: block.start("code")].count("\n") + 1
            given = GIVEN.search(block["notes"])
            name = f"{re.sub(r'[^0-9A-Za-z]', '_', str(place))}_{line}"
            yield f"namespace {name} {{\n[[maybe_unused]] void snippet() {{\n"
            if given:
                above = text[: block.start() + given.start(1)].count("\n") + 1
                yield f'#line {above} "{page}"\n{given[1]}'
            # A scope of its own, so that a block may name what the preamble or its comment names.
            yield f'{{\n#line {line} "{page}"\n{block["code"]}}}\n}}\n}}\n'


if __name__ == "__main__":
    if "--compile" in sys.argv:
        Path(sys.argv[sys.argv.index("--compile") + 1]).write_text("".join(compilable()))
        sys.exit(0)
    finish(check_quotes("--fix" in sys.argv))
