# SPDX-License-Identifier: Apache-2.0
"""Each bug of tests/mutation/mutants can still be planted: its `old` occurs exactly once. It stands in the
list of its module, under a name of its own.

`./dev mutate` says the first as well, but takes minutes and runs seldom.
"""

import mutants
from repo import ROOT, finish


def check():
    found, names = [], set()
    for mutant in mutants.read(ROOT):
        name, file, place = mutant["name"], mutant["file"], mutant["list"]
        path = ROOT / file
        places = path.read_text().count(mutant["old"]) if path.is_file() else 0
        if places != 1:
            found.append(f"{place}: '{name}': its text is {places} times in {file}, must be once")
        right = f"{mutants.FOLDER}/{mutants.module_of(file)}.json"
        if place != right:
            found.append(f"{place}: '{name}': is about {file}, so it belongs into {right}")
        if name in names:
            found.append(f"{place}: '{name}': there are two of this name")
        names.add(name)
    return found


if __name__ == "__main__":
    finish(check())
