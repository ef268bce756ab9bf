// SPDX-License-Identifier: Apache-2.0
#include "fsdp/layout/unit_layout.hpp"

int main() { return fsdp::layout::UnitLayout({35, 7}, 4, 1).shard_numel() == 11 ? 0 : 1; }
