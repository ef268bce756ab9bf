#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cost of an operator that takes no weight, and of one that does.
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
