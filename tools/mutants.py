# SPDX-License-Identifier: Apache-2.0
"""The planted bugs of tests/mutation/mutants, one file per module.

A list of one file was changed by every two branches at the same place.
"""

import json
from pathlib import Path

FOLDER = "tests/mutation/mutants"


def module_of(file: str) -> str:
    """The name of the list for bugs of this source: its module, or the folder at the top that it lies in."""
    parts = Path(file).parts
    if parts[:1] == ("src",):
        return parts[1]
    return parts[2] if parts[:2] == ("include", "fsdp") and len(parts) > 3 else parts[0]


def read(root: Path) -> list[dict]:
    """All of them, by module; each with `list`, the name of the file that it stands in."""
    mutants = []
    for path in sorted((root / FOLDER).glob("*.json")):
        mutants += [{**mutant, "list": f"{FOLDER}/{path.name}"} for mutant in json.loads(path.read_text())]
    return mutants
