// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace fsdp::apps {

/// The path of the running program.
std::string program_path();

/// The text that ships with the repository: in the source tree this program was built from, in the
/// tree around the program, or beside an installed one. Where it would be when it is nowhere.
std::string default_text();

/// The variable that says that this process is already a rank of a job; empty when there is none.
std::string job_variable();

/// The directory with the tokenizer that lies beside weights, as archive::WeightSource opens them,
/// whole and usable or not; empty when no file of one is there.
std::string tokenizer_beside(const std::string& weights);

}  // namespace fsdp::apps
