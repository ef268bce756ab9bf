#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Step time of 2 ranks with 1 thread each beside plain LibTorch in one process, on the same shapes.
# The systems alternate round by round; medians over rounds, with the smallest and largest.
# Usage: ./dev bench step [ROUNDS [STEPS]]
set -euo pipefail
rounds=${1:-5} steps=${2:-12}
root=$(cd "$(dirname "$0")/.." && pwd)
bench=$root/build/release/bin/bench_step
results=$root/build/bench/step.jsonl
mkdir -p "$(dirname "$results")"
: >"$results"
for ((round = 1; round <= rounds; ++round)); do
  for shape in default compute communication; do
    printf 'round %d of %d, %s\n' "$round" "$rounds" "$shape" >&2
    "$bench" plain "$shape" "$steps" 1 >>"$results"
    "$bench" plain "$shape" "$steps" 2 >>"$results"
    for store in slots aliased shm; do
      OMP_NUM_THREADS=1 "$FSDP_BINARY" run -n 2 -- "$bench" "$store" "$shape" "$steps" 1 >>"$results"
    done
  done
done
"$root/.venv/bin/python" "$root/bench/summarise_step.py" "$results" "$root/build/bench/step.json"
