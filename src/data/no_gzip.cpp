// SPDX-License-Identifier: Apache-2.0
#include "data/content.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

std::string from_gzip(const std::string& path, std::string_view /*stored*/) {
  fail(
      ErrorCode::kUnsupported, "'", path,
      "' is compressed by gzip, and this program was built without zlib (Debian: zlib1g-dev): gzip "
      "-d makes text of it");
}

}  // namespace fsdp::data::detail
