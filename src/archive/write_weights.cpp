// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>

#include "archive/elements.hpp"
#include "archive/file.hpp"
#include "archive/plan.hpp"
#include "base/unfinished.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;
using detail::File;

namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 17;

/// Copies tensors a chunk at a time, in another dtype where that is wanted.
class Copier {
 public:
  explicit Copier(const WeightSource& source) : source_(source) {}

  void copy(const Tensor& from, const Tensor& to, File& file) {
    const std::int64_t from_size = format::element_bytes(from.dtype);
    const std::int64_t to_size = format::element_bytes(to.dtype);
    const std::int64_t count = numel(from.shape);
    for (std::int64_t done = 0; done < count; done += kChunkElements) {
      const std::int64_t part = std::min(kChunkElements, count - done);
      stored_.resize(static_cast<std::size_t>(part * from_size));
      source_.read(from, done * from_size, part * from_size, stored_.data());
      if (from.dtype != to.dtype) {
        convert(from.dtype, to.dtype, part);
      }
      file.write(stored_.data(), part * to_size, to.offset + done * to_size);
    }
  }

 private:
  void convert(const std::string& from, const std::string& to, std::int64_t count) {
    values_.resize(static_cast<std::size_t>(count));
    detail::to_double(from, stored_.data(), count, values_.data());
    stored_.resize(static_cast<std::size_t>(count * format::element_bytes(to)));
    detail::from_double(to, values_.data(), count, stored_.data());
  }

  const WeightSource& source_;
  std::vector<char> stored_;
  std::vector<double> values_;
};

std::vector<format::TensorEntry> entries_of(const WeightSource& source, const std::string& dtype) {
  FSDP_CHECK(dtype.empty() || detail::is_floating(dtype), ErrorCode::kInvalidArgument,
             "the dtype is '", dtype, "', must be F32, F64, F16 or BF16");
  std::vector<format::TensorEntry> entries;
  for (const Tensor& tensor : source.tensors()) {
    const bool converts = !dtype.empty() && detail::is_floating(tensor.dtype);
    entries.push_back({tensor.name, converts ? dtype : tensor.dtype, tensor.shape});
  }
  return entries;
}

/// Behind a name in JSON, `: "text"` gets another text. Returns a place behind the name. By hand: a
/// regular expression of the standard library ends the stack on a long enough file.
std::size_t replace_text(std::string& json, std::size_t at, const std::string& replacement) {
  constexpr const char* kBlank = " \t\r\n";
  const std::size_t colon = json.find_first_not_of(kBlank, at);
  if (colon == std::string::npos || json[colon] != ':') {
    return at;
  }
  const std::size_t begin = json.find_first_not_of(kBlank, colon + 1);
  if (begin == std::string::npos || json[begin] != '"') {
    return at;
  }
  const std::size_t end = json.find('"', begin + 1);
  if (end != std::string::npos) {
    json.replace(begin + 1, end - begin - 1, replacement);
  }
  return at;
}

/// A config.json that tells readers of the weights' new type.
std::string config_for(const std::string& config, const std::string& dtype) {
  if (dtype.empty()) {
    return config;
  }
  const std::string name = dtype == "F32"   ? "float32"
                           : dtype == "F64" ? "float64"
                           : dtype == "F16" ? "float16"
                                            : "bfloat16";
  std::string text = config;
  for (const char* key : {"\"dtype\"", "\"torch_dtype\""}) {
    for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at)) {
      at = replace_text(text, at + std::string_view(key).size(), name);
    }
  }
  return text;
}

void write_files(const WeightSource& source, const FilePlan& plan,
                 const std::vector<std::string>& paths) {
  Copier copier(source);
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    const PlannedFile& planned = plan.files[i];
    File file(paths[i], detail::OpenMode::kCreate);
    file.write(planned.head.data(), std::ssize(planned.head), 0);
    file.resize(planned.bytes);
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      if (plan.tensors[t].file == planned.name) {
        copier.copy(source.tensors()[t], plan.tensors[t], file);
      }
    }
    file.sync();
  }
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    errno = error.value();
    detail::fail_io("create directory", path.string());
  }
}

void write_directory(const WeightSource& source, const FilePlan& plan, const std::string& path,
                     const std::string& dtype) {
  std::vector<std::string> paths;
  paths.reserve(plan.files.size());
  for (const PlannedFile& planned : plan.files) {
    paths.push_back(path + "/" + planned.name);
  }
  write_files(source, plan, paths);
  const std::string map = weight_map_json(plan);
  if (!map.empty()) {
    detail::write_file(path + "/model.safetensors.index.json", map);
  }
  for (const auto& [name, text] : source.documents()) {
    if (name != "adapter_config.json") {  // adapters without their weights would mislead
      detail::write_file(path + "/" + name, name == "config.json" ? config_for(text, dtype) : text);
    }
  }
  detail::sync_directory(path);
}

}  // namespace

void write_weights(const WeightSource& source, const std::string& target,
                   const WriteWeightsOptions& options) {
  std::error_code ignored;
  FSDP_CHECK(!target.empty(), ErrorCode::kInvalidArgument, "there is no name to write to");
  FSDP_CHECK(!fs::exists(target, ignored), ErrorCode::kInvalidArgument, "'", target,
             "' exists already: nothing is overwritten; name another or remove it");
  const bool is_file = target.ends_with(".safetensors");
  const FilePlan plan = plan_files(Section::kModel, entries_of(source, options.dtype),
                                   {{"format", "pt"}}, options.max_file_bytes);
  FSDP_CHECK(!is_file || plan.files.size() <= 1, ErrorCode::kInvalidArgument, "'", target,
             "' is one file, but the weights take ", plan.files.size(),
             ": name a directory instead");
  // As a shell would complete it: "out/" is "out".
  const fs::path place = fs::absolute(target).lexically_normal();
  const fs::path plain = place.has_filename() ? place : place.parent_path();
  if (!is_file) {
    make_directories(plain.parent_path());
  }
  base::Unfinished draft(plain.string(),
                         is_file ? base::PathKind::kFile : base::PathKind::kDirectory);
  if (is_file) {
    write_files(source, plan, {draft.path()});
  } else {
    write_directory(source, plan, draft.path(), options.dtype);
  }
  draft.finish();
  detail::sync_directory(plain.parent_path().string());
}

}  // namespace fsdp::archive
