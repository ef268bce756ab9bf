#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Peak memory of growing models, and a limit under which DDP dies and ours trains.
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
