// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fsdp::apps {

/// The program `fsdp`: reads its command line, does what it says, and returns the exit code. Also
/// what `python -m fsdp` calls.
int program(int argc, char** argv);

}  // namespace fsdp::apps
