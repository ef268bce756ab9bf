#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Time of a training step: ours by transport, FSDP2, DDP, ZeRO-3, and the bound.
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
