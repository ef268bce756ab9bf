// SPDX-License-Identifier: Apache-2.0
#include "bad_input.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>

namespace fsdp::apps {
namespace {

namespace fs = std::filesystem;

/// "HuggingFaceTB/SmolLM2-135M", unless the first half is a directory here.
bool looks_like_hub_name(const std::string& path) {
  const auto slash = path.find('/');
  const auto is_plain = [](unsigned char character) {
    return std::isalnum(character) != 0 || character == '-' || character == '_' ||
           character == '.' || character == '/';
  };
  std::error_code ignored;
  return slash != std::string::npos && slash > 0 && slash + 1 < path.size() &&
         path.find('/', slash + 1) == std::string::npos && path.front() != '.' &&
         std::all_of(path.begin(), path.end(), is_plain) &&
         !fs::exists(path.substr(0, slash), ignored);
}

}  // namespace

void need_path(const std::string& name, const std::string& path, Wanted wanted) {
  std::error_code error;
  if (fs::exists(path, error) || error) {
    return;  // what cannot be looked at is told by who opens it
  }
  const std::string folder = path.substr(path.find('/') + 1);
  const bool is_hub = wanted != Wanted::kFile && looks_like_hub_name(path);
  const std::string kind = wanted == Wanted::kData ? "--repo-type dataset " : "";
  fail(ErrorCode::kInvalidArgument, name, " '", path,
       "' does not exist: there is nothing at that path",
       is_hub ? "; if it is a name on the Hugging Face hub, fetch it first: hf download " + kind +
                    path + " --local-dir " + folder
              : "");
}

}  // namespace fsdp::apps
