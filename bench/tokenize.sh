#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# MB of text per second through published tokenizers, beside Hugging Face's tokenizers and tiktoken.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034  # read by tools/setup.sh
stamps=$root/build/stamps
# shellcheck source=tools/setup.sh
source "$root/tools/setup.sh"
setup_oracles release
"$root/tools/data/tokenizers.sh" >/dev/null
mkdir -p "$root/build/bench"
exec "$root/.venv/bin/python" "$root/bench/programs/tokenize_text.py" "$@"
