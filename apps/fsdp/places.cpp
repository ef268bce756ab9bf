// SPDX-License-Identifier: Apache-2.0
#include "places.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "fsdp/archive/listing.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::apps {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json",
    "vocab.json",     "merges.txt",      "encoder.json",
    "vocab.bpe",      "vocab.txt",       "spiece.model"};

}  // namespace

std::string program_path() {
  std::error_code error;
  const fs::path path = fs::read_symlink("/proc/self/exe", error);
  return error ? "fsdp" : path.string();
}

std::string default_text() {
  const fs::path bin = fs::path(program_path()).parent_path();
  const fs::path source = fs::path(FSDP_SOURCE_DIR) / "data" / "kjv.txt";
  for (const fs::path& candidate : {source, bin / ".." / ".." / ".." / "data" / "kjv.txt",
                                    bin / ".." / "share" / "fsdp" / "kjv.txt"}) {
    std::error_code error;
    if (fs::exists(candidate, error)) {
      return candidate.lexically_normal().string();
    }
  }
  return source.string();
}

std::string job_variable() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID"}) {
    if (std::getenv(name) != nullptr) {
      return name;
    }
  }
  return "";
}

std::string tokenizer_beside(const std::string& weights) {
  std::error_code ignored;
  // Also what is not usable or not all there: whoever loads it says so.
  const auto has_one = [&](const fs::path& directory) {
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".tiktoken") ||
          std::ranges::find(kTokenizerFiles, name) != std::end(kTokenizerFiles)) {
        return true;
      }
    }
    return false;
  };
  const fs::path directory =
      fs::is_directory(weights, ignored) ? fs::path(weights) : fs::path(weights).parent_path();
  if (has_one(directory)) {
    return directory.string();
  }
  // A run's directory: what it is about lies in its checkpoints.
  try {
    const auto latest = archive::latest_checkpoint(weights).found;
    return latest && has_one(latest->path) ? latest->path : "";
  } catch (const Error&) {
    return "";  // whoever reads the weights says why none is complete
  }
}

}  // namespace fsdp::apps
