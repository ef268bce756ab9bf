#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Collectives of each transport between 2 ranks, from 4 KiB to 256 MiB, beside memcpy in the same run.
# Usage: ./dev bench collectives [ROUNDS]
set -euo pipefail
rounds=${1:-200}
root=$(cd "$(dirname "$0")/.." && pwd)
results=$root/build/bench/collectives.jsonl
mkdir -p "$(dirname "$results")"
for transport in shm gloo; do
  OMP_NUM_THREADS=1 "$FSDP_BINARY" run -n 2 -- "$root/build/release/bin/bench_collectives" "$transport" "$rounds"
done | sed 's/^\[[0-9]*\] *//' | tee "$results"
