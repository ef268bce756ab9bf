#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Time and memory of a training step in Python: the package, FSDP2, DDP.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# FSDP2 and DDP come with the torch that the extension was built for.
PYTHONPATH=$root/bench:$root/bench/peers:$root/build/release/python exec "$root/.venv/bin/python" \
  "$root/bench/programs/python.py" "$@"
