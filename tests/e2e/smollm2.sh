#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# smollm2.py with the model of ./dev data smollm2 and a Python that has what it needs; 77: none does.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
for python in "${FSDP_TEST_PYTHON:-}" "$root/.venv/bin/python" "$root/.venv-peers/bin/python" python3; do
  if [[ -n $python ]] && "$python" -c 'import torch, transformers, numpy' >/dev/null 2>&1; then
    model=$("$root/dev" data smollm2)
    exec "$python" "$root/tests/e2e/smollm2.py" "$FSDP_BINARY" "$model"
  fi
done
echo "no Python with torch, transformers and numpy: FSDP_TEST_PYTHON names one"
exit 77
