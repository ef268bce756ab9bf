// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/listing.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <functional>
#include <ranges>
#include <tuple>

#include "archive/draft_files.hpp"
#include "archive/file.hpp"
#include "archive/load_index.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;

namespace {

/// The step in "step-00000100"; nothing for another name.
std::optional<std::int64_t> step_of(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) {
    return std::nullopt;
  }
  return step;
}

FoundCheckpoint look_at(const std::string& path, std::int64_t step) {
  FoundCheckpoint found{.step = step, .path = path};
  try {
    const Index index = detail::load_index(path);
    for (const StoredFile& file : index.files) {
      found.bytes += file.bytes;
    }
    FSDP_CHECK(index.step == step, ErrorCode::kCorrupt, "'", path, "' has the index of step ",
               index.step);
    detail::check_file_sizes(path, index);
  } catch (const Error& error) {
    found.problem = error.text();
  }
  return found;
}

/// A save that did not end, before which there was no checkpoint of that step.
bool is_draft(const FoundCheckpoint& found) {
  return detail::is_draft_name(fs::path(found.path).filename().string());
}

std::string problems_of(const std::vector<FoundCheckpoint>& skipped) {
  std::string text;
  for (const FoundCheckpoint& found : skipped) {
    text += "; '" + found.path + "' is incomplete: " + found.problem;
  }
  return text;
}

}  // namespace

std::vector<FoundCheckpoint> list_checkpoints(const std::string& root) {
  std::error_code error;
  fs::directory_iterator entries(root, error);
  if (error) {
    errno = error.value();
    detail::fail_io("list", root);
  }
  std::vector<FoundCheckpoint> found;
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (const auto step = step_of(name)) {
      found.push_back(look_at(entry.path().string(), *step));
    } else if (detail::is_draft_name(name)) {
      found.push_back({.step = step_of(name.substr(1, name.find(".partial-") - 1)).value_or(0),
                       .path = entry.path().string(),
                       .problem = "its save did not end"});
    }
  }
  std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    return std::tie(a.step, a.path) < std::tie(b.step, b.path);
  });
  return found;
}

LatestCheckpoint latest_checkpoint(const std::string& root) {
  LatestCheckpoint latest;
  std::error_code ignored;
  // A root that cannot be looked at may hold some: listing it says why it cannot.
  if (fs::status(root, ignored).type() == fs::file_type::not_found) {
    return latest;
  }
  const std::vector<FoundCheckpoint> all = list_checkpoints(root);
  for (const FoundCheckpoint& checkpoint : std::views::reverse(all)) {
    if (checkpoint.is_complete()) {
      latest.found = checkpoint;
      break;
    }
    latest.skipped.push_back(checkpoint);
  }
  FSDP_CHECK(latest.found || std::ranges::all_of(latest.skipped, is_draft), ErrorCode::kCorrupt,
             "none of ", std::ranges::count_if(latest.skipped, std::not_fn(is_draft)),
             " checkpoints in '", root, "' is complete", problems_of(latest.skipped),
             ". Move them away to begin anew");
  return latest;
}

std::string resolve_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / kIndexName, ignored)) {
    return path;
  }
  // Both are something else, for which there is another way.
  const bool is_weights = path.ends_with(".safetensors") || path.ends_with(".gguf");
  FSDP_CHECK(!fs::is_regular_file(path, ignored), ErrorCode::kInvalidArgument, "'", path, "' is a ",
             is_weights ? "file of weights alone" : "file", ", no checkpoint",
             is_weights ? ": load_weights() reads it" : "");
  FSDP_CHECK(fs::is_directory(path, ignored), ErrorCode::kNotFound, "there is no checkpoint '",
             path, "'");
  const LatestCheckpoint latest = latest_checkpoint(path);
  if (latest.found) {
    return latest.found->path;
  }
  FSDP_CHECK(!fs::exists(fs::path(path) / "model.safetensors", ignored) &&
                 !fs::exists(fs::path(path) / "model.safetensors.index.json", ignored),
             ErrorCode::kInvalidArgument, "'", path,
             "' holds weights alone, no checkpoint: load_weights() reads them");
  fail(ErrorCode::kNotFound, "'", path, "' holds neither ", kIndexName,
       " nor a complete checkpoint (step-N)", problems_of(latest.skipped));
}

}  // namespace fsdp::archive
