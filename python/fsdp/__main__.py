# SPDX-License-Identifier: Apache-2.0
"""`python -m fsdp run -n 2 -- python train.py`: the program `fsdp` without the language models."""

import sys

from fsdp import _C


def main() -> int:
    """Runs the program with this process's arguments; returns its exit code."""
    return _C.program(["fsdp", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
