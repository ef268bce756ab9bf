// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <regex>

#include "archive/elements.hpp"
#include "archive/file.hpp"
#include "archive/plan.hpp"
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

/// A config.json that tells readers of the weights' new type.
std::string config_for(const std::string& config, const std::string& dtype) {
  if (dtype.empty()) {
    return config;
  }
  const std::string name = dtype == "F32"   ? "float32"
                           : dtype == "F64" ? "float64"
                           : dtype == "F16" ? "float16"
                                            : "bfloat16";
  static const std::regex kType("(\"(?:torch_)?dtype\"\\s*:\\s*\")[a-z0-9]+\"");
  return std::regex_replace(config, kType, "$1" + name + "\"");
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

void write_directory(const WeightSource& source, const FilePlan& plan, const std::string& path,
                     const std::string& dtype) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    errno = error.value();
    detail::fail_io("create directory", path);
  }
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
  const std::string partial = target + ".partial";
  fs::remove_all(partial, ignored);
  try {
    if (is_file) {
      write_files(source, plan, {partial});
    } else {
      write_directory(source, plan, partial, options.dtype);
    }
    detail::rename_path(partial, target);
  } catch (...) {
    fs::remove_all(partial, ignored);
    throw;
  }
  const fs::path parent = fs::absolute(target).parent_path();
  detail::sync_directory(parent.string());
}

}  // namespace fsdp::archive
