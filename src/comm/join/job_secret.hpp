// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fsdp::comm::detail {

/// What only the ranks of a job know: FSDP_JOB_SECRET, else the first line of the file that
/// FSDP_JOB_SECRET_FILE names, else empty.
/// @throws Error kInvalidArgument for one that is too short, or a file that others may read
std::string read_job_secret();

}  // namespace fsdp::comm::detail
