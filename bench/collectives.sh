#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bandwidth of every transport beside memcpy, 4 KiB to 256 MiB.
set -euo pipefail
# shellcheck source=bench/peers/setup.sh
source "$(dirname "$0")/peers/setup.sh"
run_bench "$@"
