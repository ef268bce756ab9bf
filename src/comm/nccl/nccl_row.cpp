// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl.hpp"
#include "comm/nccl/nccl_library.hpp"
#include "comm/transport_row.hpp"

namespace fsdp::comm::detail {
namespace {

/// All ranks need the library; the first that lacks it says why.
std::optional<std::string> needs_library(const Site& site) {
  const auto problems = site.ask_all("nccl", nccl::find_library().problem);
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) {
      return "cannot run on rank " + std::to_string(rank) + ": it " + problems[rank];
    }
  }
  if (!site.device().is_cuda() && !site.device().is_privateuseone()) {
    return "carries tensors of CUDA devices, and these ranks compute on " + site.device().str();
  }
  return std::nullopt;
}

}  // namespace

TransportRow nccl_row() {
  return {.info = {.traits = nccl_traits(),
                   .between = "devices of CUDA, one for each rank, by NCCL",
                   .carries_device = true},
          .cannot_run = needs_library,
          .needs_own_device = true,
          .make_over = [](const Site& site, const Link& host) {
            return make_nccl_link(nccl::find_library().library, host, site.device(),
                                  site.timeout());
          }};
}

}  // namespace fsdp::comm::detail
