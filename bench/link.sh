#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Step time over a network link of 0.25, 1 and 4 Gbit/s (root; network namespaces).
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
