// SPDX-License-Identifier: Apache-2.0
/// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "fsdp/base/rank_env.hpp"

namespace fsdp::comm::detail {

/// What was chosen, and a line for people where that is not what they may expect; else empty.
struct RankDevice {
  c10::Device device = c10::kCPU;
  std::string note = {};
};

/// `word` is "cpu"; "auto", the accelerator of this LibTorch when it sees one, else the CPU; or a
/// device of LibTorch's, with a number or without, as "cuda:1". Without, it is the only one that
/// this process sees, as under Slurm, else the one of the rank's number on its host, LOCAL_RANK.
/// `may_share`: with more ranks than devices, in turn. Local; starts no device.
/// @throws Error kInvalidArgument for another word, a number that is not there, or too few devices;
/// kUnsupported when this LibTorch has none of the kind
RankDevice choose_device(const std::string& word, const base::RankEnvironment& environment,
                         bool may_share);

}  // namespace fsdp::comm::detail
