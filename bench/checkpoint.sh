#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Save and load of a GPT with AdamW on 2 ranks, beside torch.distributed.checkpoint and dd conv=fsync.
# The three alternate round by round on one disk; files leave the page cache before they are loaded.
# Medians over rounds. Usage: ./dev bench checkpoint [ROUNDS [DIRECTORY]]
set -euo pipefail
rounds=${1:-5}
root=$(cd "$(dirname "$0")/.." && pwd)
place=${2:-$root/build/bench/checkpoint}
bench=$root/build/release/bin/bench_checkpoint
program=$root/build/release/bin/fsdp
python=$root/.venv/bin/python
results=$root/build/bench/checkpoint.jsonl
mkdir -p "$place"
: >"$results"
trap 'rm -rf "$place"' EXIT

# Zeros into two files at once, of the sizes that two sections have: one third and two thirds.
run_dd() {
  local bytes=$1 begin end
  begin=$(date +%s.%N)
  dd if=/dev/zero of="$place/model" bs=1M count=$((bytes / 3 / 1048576)) conv=fsync 2>/dev/null &
  dd if=/dev/zero of="$place/optimizer" bs=1M count=$((bytes * 2 / 3 / 1048576)) conv=fsync 2>/dev/null
  wait
  end=$(date +%s.%N)
  printf '{"system": "dd conv=fsync", "bytes": %d, "save_s": %s}\n' "$bytes" \
    "$(awk -v a="$begin" -v b="$end" 'BEGIN {print b - a}')" >>"$results"
}

bytes=$("$bench" bytes)
"$bench" shapes >"$root/build/bench/checkpoint_shapes.json"
for ((round = 1; round <= rounds; ++round)); do
  printf 'round %d of %d\n' "$round" "$rounds" >&2
  rm -rf "${place:?}"/*
  OMP_NUM_THREADS=1 "$program" run -n 2 -- "$bench" run "$place/ours" >>"$results"
  rm -rf "${place:?}"/*
  OMP_NUM_THREADS=1 "$python" -m torch.distributed.run --standalone --nproc-per-node 2 \
    "$root/bench/checkpoint/dcp.py" "$root/build/bench/checkpoint_shapes.json" "$place/dcp" >>"$results"
  rm -rf "${place:?}"/*
  run_dd "$bytes"
done
"$python" "$root/bench/checkpoint/summarise.py" "$results" "$root/build/bench/checkpoint.json"
