// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace fsdp::apps {

/// The path of the running program.
std::string program_path();

/// The text that ships with the repository: in the source tree this program was built from, in the
/// tree around the program, or beside an installed one. Where it would be when it is nowhere.
std::string default_text();

/// The variable that says that this process is already a rank of a job; empty when there is none.
std::string job_variable();

/// Runs `action`; files that are missing, damaged or ask for what is not supported are bad input.
/// @throws Error kInvalidArgument in place of kNotFound, kCorrupt and kUnsupported
void as_bad_input(const std::function<void()>& action);

}  // namespace fsdp::apps
