# SPDX-License-Identifier: Apache-2.0
"""Runs the sh blocks of a tutorial, line by line, in the checkout, and checks what they say.

    tutorial.py PAGE [EXPECTATION ...]

An expectation is "N:REGULAR EXPRESSION": it must be found in what the N-th command prints, counted
from 1. "N:losses" wants the loss that the N-th command ends with below the one it begins with.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(page):
    """Every line of every sh block."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def losses_fall(output):
    before = re.search(r"^before +validation loss ([0-9.]+)", output, re.MULTILINE)
    after = re.search(r"^validation loss ([0-9.]+)", output, re.MULTILINE)
    return bool(before and after and float(after.group(1)) < float(before.group(1)) - 0.1)


def main():
    page, expectations = ROOT / sys.argv[1], [text.split(":", 1) for text in sys.argv[2:]]
    lines = commands(page)
    if not lines:
        sys.exit(f"{page} has no sh block")
    for number, line in enumerate(lines, 1):
        print(f"$ {line}", flush=True)
        done = subprocess.run(["bash", "-c", line], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print(done.stdout, flush=True)
        if done.returncode != 0:
            sys.exit(f"command {number} ended with {done.returncode}")
        for expectation in (text for at, text in expectations if int(at) == number):
            good = losses_fall(done.stdout) if expectation == "losses" else re.search(expectation, done.stdout)
            if not good:
                sys.exit(f"command {number} did not show: {expectation}")
    if any(int(at) > len(lines) for at, _ in expectations):
        sys.exit("an expectation names a command that the page does not have")


if __name__ == "__main__":
    main()
