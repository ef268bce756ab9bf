#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# MB of text a second through published tokenizers, beside Hugging Face's tokenizers and tiktoken.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tools/data/tokenizers.sh" >/dev/null
mkdir -p "$root/build/bench"
exec "$root/.venv-tokenizers/bin/python" "$root/bench/programs/tokenize_text.py" "$@"
