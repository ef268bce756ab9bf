#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes data/kjv.txt from Debian's packages bible-kjv and bible-kjv-text: one verse a line, without
# the verse marks. The program prints the first verse twice when it reads a range, hence `uniq`.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v bible >/dev/null || { echo "make_kjv.sh: install the Debian package bible-kjv" >&2; exit 1; }
echo 'gen1:1-rev99:99' | bible -f | grep -aE '^[0-9]?[A-Z][A-Za-z]*[0-9]+:[0-9]+ ' | uniq |
  sed -E 's/^[^ ]+ +//; s/ +$//' > data/kjv.txt
lines=$(wc -l < data/kjv.txt)
[[ $lines == 31102 ]] || { echo "make_kjv.sh: $lines verses, expected 31102" >&2; exit 1; }
