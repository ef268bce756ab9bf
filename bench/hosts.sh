#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Step time on two hosts of two ranks, over a link of 1 Gbit/s (root; network namespaces).
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
