// SPDX-License-Identifier: Apache-2.0
/// Finds libnccl and opens it. Looked for, in this order: FSDP_NCCL, the one that is in the process
/// already, beside libtorch, in the wheel nvidia/nccl beside LibTorch's, in LibTorch itself, on the
/// system.
#pragma once

#include <memory>
#include <string>

#include "comm/nccl/nccl_api.hpp"

namespace fsdp::comm::detail::nccl {

/// *Invariants*: all functions are there, the version is kOldestVersion or newer. Stays open to the
/// end of the process.
struct Library : Functions {
  std::string path;  ///< where it was found
  int version = 0;   ///< as ncclGetVersion() counts: 21800 is 2.18.0
  std::string version_text() const;
};

/// A library, or why there is none, to be read behind "transport nccl".
struct Search {
  std::shared_ptr<const Library> library;
  std::string problem;
};

/// Looks again each time: FSDP_NCCL may have changed. *Thread safety*: any thread.
Search find_library();

/// "2.18.0" for 21800.
std::string version_text(int version);

}  // namespace fsdp::comm::detail::nccl
