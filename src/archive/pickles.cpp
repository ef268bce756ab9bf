// SPDX-License-Identifier: Apache-2.0
#include "archive/pickles.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "format/file_kind.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive::detail {
namespace {

namespace fs = std::filesystem;
using format::detail::shell_quoted;

/// Files of PyTorch that hold weights as pickles; in a directory only where nothing better lies.
std::vector<fs::path> pickles_at(const fs::path& path) {
  const auto is_pickle = [](const fs::path& file) {
    const std::string ending = file.extension().string();
    return ending == ".pt" || ending == ".pth" || ending == ".ckpt" ||
           (ending == ".bin" && file.filename().string().starts_with("pytorch_model"));
  };
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    return is_pickle(path) ? std::vector<fs::path>{path} : std::vector<fs::path>{};
  }
  std::vector<fs::path> pickles;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.starts_with("step-")) {
      return {};
    }
    if (is_pickle(entry.path())) {
      pickles.push_back(entry.path());
    }
  }
  std::sort(pickles.begin(), pickles.end());
  return pickles;
}

/// Python for one file; several need the library that knows which goes where.
std::string conversion(const std::vector<fs::path>& pickles) {
  const fs::path directory = pickles.front().parent_path();
  if (pickles.size() > 1) {
    return "python3 -c \"import sys; from transformers import AutoModelForCausalLM as M, "
           "AutoTokenizer as T; d, o = sys.argv[1:]; M.from_pretrained(d).save_pretrained(o); "
           "T.from_pretrained(d).save_pretrained(o)\" " +
           shell_quoted(directory.string()) + " " +
           shell_quoted(directory.string() + "-safetensors");
  }
  return "python3 -c \"import sys, torch; from safetensors.torch import save_file; "
         "t = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
         "save_file({k: v.clone().contiguous() for k, v in t.items()}, sys.argv[2], "
         "{'format': 'pt'})\" " +
         shell_quoted(pickles.front().string()) + " " +
         shell_quoted((directory / "model.safetensors").string());
}

}  // namespace

void refuse_pickles(const std::string& path) {
  const auto pickles = pickles_at(path);
  if (!pickles.empty()) {
    fail(ErrorCode::kUnsupported, "'", path, "' has its weights in ",
         pickles.front().filename().string(),
         ", a Python pickle, which can run any program and is not read here; make safetensors of "
         "it: ",
         conversion(pickles));
  }
}

}  // namespace fsdp::archive::detail
