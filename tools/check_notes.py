# SPDX-License-Identifier: Apache-2.0
"""Every "See NOTE [x]" in a comment has its "NOTE [x]", once."""

import re

from repo import cpp_files, files, finish, where

# A title may run over a line break and its comment marker.
GAP = r"(?:\s|///?|#)+"
MENTION = re.compile(rf"(\bsee{GAP})?\bNOTE{GAP}\[([^\]]+)\]", re.IGNORECASE)


def main():
    notes, references, findings = {}, [], []
    for path in cpp_files() + files("*.cmake", "CMakeLists.txt", "*/CMakeLists.txt"):
        text = path.read_text()
        for match in MENTION.finditer(text):
            place = where(path, text[: match.start()].count("\n") + 1)
            title = " ".join(re.sub(r"\n\s*(?:///?|#)", " ", match.group(2)).split())
            if match.group(1):
                references.append((title, place))
            elif title in notes:
                findings.append(f"{place}: NOTE [{title}] is also at {notes[title]}")
            else:
                notes[title] = place
    findings += [f"{place}: no file holds NOTE [{title}]" for title, place in references if title not in notes]
    finish(findings)


if __name__ == "__main__":
    main()
