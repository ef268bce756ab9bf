# SPDX-License-Identifier: Apache-2.0
"""What the checks share: the files of this checkout and how a finding is printed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def files(*patterns: str) -> list[Path]:
    """Own files that match, committed or not yet; third_party/ is left out."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z", "--", *patterns]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    paths = sorted({ROOT / name for name in names if name and not name.startswith("third_party/")})
    return [path for path in paths if path.is_file()]


def cpp_files() -> list[Path]:
    return files("*.cpp", "*.hpp", "*.h")


def finish(findings: list[str]) -> None:
    """Prints the findings and ends the program: 1 when there are any."""
    for finding in findings:
        print(finding)
    sys.exit(1 if findings else 0)


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"
