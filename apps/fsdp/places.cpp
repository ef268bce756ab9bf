// SPDX-License-Identifier: Apache-2.0
#include "places.hpp"

#include <cstdlib>
#include <filesystem>

#include "fsdp/base/error.hpp"

namespace fsdp::apps {

namespace fs = std::filesystem;

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

void as_bad_input(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const bool is_input = error.code() == ErrorCode::kNotFound ||
                          error.code() == ErrorCode::kCorrupt ||
                          error.code() == ErrorCode::kUnsupported;
    FSDP_CHECK(!is_input, ErrorCode::kInvalidArgument, error.text());
    throw;
  }
}

}  // namespace fsdp::apps
