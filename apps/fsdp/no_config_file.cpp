// SPDX-License-Identifier: Apache-2.0
#include "config_file.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::apps {

std::vector<FileOption> read_config_file(const std::string& path, const std::string& /*table*/) {
  fail(ErrorCode::kInvalidArgument, "--config '", path,
       "': this program was built without toml++, which reads such files (Debian: "
       "libtomlplusplus-dev)");
}

}  // namespace fsdp::apps
