// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::shm {

/// Bytes that can be had without pushing others out, and what sets the limit ("the host", "the
/// container (/sys/fs/cgroup/...)").
struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string limited_by;
};

/// The smallest of what the host has and what the control groups of this process (version 2, as far
/// as they can be seen from here) leave. Reads a few small files.
AvailableMemory available_memory();

/// The same with the files below `root` instead of /; for tests.
AvailableMemory available_memory(const std::string& root);

}  // namespace fsdp::shm
