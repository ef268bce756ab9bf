#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# 1 to 8 ranks on this machine's cores; 2 to 200 units of one model.
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
