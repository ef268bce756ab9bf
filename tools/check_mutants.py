# SPDX-License-Identifier: Apache-2.0
"""Each bug of tests/mutation/mutants.json can still be planted: its `old` occurs exactly once.

`./dev mutate` says so as well, but takes minutes and runs seldom.
"""

import json

from repo import ROOT, finish

LIST = "tests/mutation/mutants.json"


def check():
    found = []
    for mutant in json.loads((ROOT / LIST).read_text()):
        path = ROOT / mutant["file"]
        places = path.read_text().count(mutant["old"]) if path.is_file() else 0
        if places != 1:
            found.append(f"{LIST}: '{mutant['name']}': its text is {places} times in {mutant['file']}, must be once")
    return found


if __name__ == "__main__":
    finish(check())
