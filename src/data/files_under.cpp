// SPDX-License-Identifier: Apache-2.0
#include "data/files_under.hpp"

#include <algorithm>
#include <filesystem>

#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

namespace fs = std::filesystem;

std::vector<std::string> files_under(const std::string& root) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator walk(root, error), end;
  for (; !error && walk != end; walk.increment(error)) {
    if (walk->path().filename().string().starts_with('.')) {
      walk.disable_recursion_pending();
    } else if (std::error_code unknown; walk->is_regular_file(unknown)) {
      files.push_back(walk->path().string());
    }
  }
  FSDP_CHECK(!error, ErrorCode::kIo, "'", root, "' cannot be read: ", error.message());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace fsdp::data::detail
