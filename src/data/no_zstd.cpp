// SPDX-License-Identifier: Apache-2.0
#include "data/content.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

std::string from_zstd(const std::string& path, std::string_view /*stored*/) {
  fail(ErrorCode::kUnsupported, "'", path,
       "' is compressed by Zstandard, and this program was built without libzstd (Debian: "
       "libzstd-dev): zstd -d makes text of it");
}

}  // namespace fsdp::data::detail
