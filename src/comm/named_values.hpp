// SPDX-License-Identifier: Apache-2.0
/// Numbers that every rank sets for itself and all should have alike, such as a learning rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/comm/job.hpp"

namespace fsdp::comm {

struct NamedValue {
  std::string name;
  double value;
};

/// "lr of the group of \"h.0.weight\" in AdamW": of the group whose alphabetically first parameter
/// this is.
std::string name_of_hyper_parameter(const std::string& field, const std::string& first,
                                    const std::string& optimizer);

/// What a value counts as in a comparison: machines may compute the last bits of a schedule's
/// cosine unequally.
std::uint32_t comparable(double value);

/// The first value that ranks do not have alike, "lr of ... is 0.1 on rank 0 and 0.07 on rank 1";
/// empty where all are alike. The same on all ranks. For when a difference is known to be there.
/// @collective all ranks @blocks
std::string first_difference(Job& job, const std::vector<NamedValue>& values);

}  // namespace fsdp::comm
