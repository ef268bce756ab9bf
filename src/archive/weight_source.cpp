// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "archive/file.hpp"
#include "archive/index_text.hpp"
#include "archive/read_tensor.hpp"
#include "format/checked_json.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;
using detail::File;

namespace {
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kFileIndex = "model.safetensors.index.json";
constexpr const char* kConfig = "config.json";
constexpr std::int64_t kMostJsonBytes = std::int64_t{1} << 28;
}  // namespace

struct WeightSource::Parts {
  std::vector<Tensor> tensors;
  std::map<std::string, std::size_t> by_name;
  std::map<std::string, std::string> aliases;
  std::string config;
  std::map<std::string, File> files;

  void add_file(const fs::path& directory, const std::string& name) {
    const std::string path = (directory / name).string();
    for (const format::StoredTensor& stored : format::read_safetensors_header(path).tensors) {
      add({.section = Section::kModel,
           .name = stored.entry.name,
           .dtype = stored.entry.dtype,
           .shape = stored.entry.shape,
           .file = name,
           .offset = stored.offset,
           .bytes = stored.bytes},
          path);
    }
    files.emplace(name, File(path, detail::OpenMode::kRead));
  }

  void add(const Tensor& tensor, const std::string& path) {
    FSDP_CHECK(by_name.emplace(tensor.name, tensors.size()).second, ErrorCode::kCorrupt, "'", path,
               "': the tensor '", tensor.name, "' is in another file, too");
    tensors.push_back(tensor);
  }

  void add_checkpoint(const fs::path& path) {
    const Checkpoint checkpoint(path.string());
    for (const Tensor& tensor : checkpoint.index().tensors) {
      if (tensor.section == Section::kModel) {
        add(tensor, path.string());
        if (!files.contains(tensor.file)) {
          files.emplace(tensor.file, File((path / tensor.file).string(), detail::OpenMode::kRead));
        }
      }
    }
    aliases = checkpoint.index().aliases;
    add_config(path);
  }

  /// A directory as Hugging Face writes it, several files.
  void add_indexed_files(const fs::path& path) {
    const std::string index = (path / kFileIndex).string();
    const auto json =
        format::detail::parse_object(index, detail::read_file(index, kMostJsonBytes), 0);
    FSDP_CHECK(json.contains("weight_map") && json["weight_map"].is_object(), ErrorCode::kCorrupt,
               "'", index, "' has no weight_map");
    std::map<std::string, std::string> expected;
    std::set<std::string> names;
    for (const auto& [tensor, file] : json["weight_map"].items()) {
      FSDP_CHECK(file.is_string() && detail::is_plain_name(file.get<std::string>()),
                 ErrorCode::kCorrupt, "'", index, "': '", tensor, "' lies in no file beside it");
      expected[tensor] = file.get<std::string>();
      names.insert(file.get<std::string>());
    }
    for (const std::string& name : names) {
      add_file(path, name);
    }
    for (const auto& [tensor, file] : expected) {
      const auto found = by_name.find(tensor);
      FSDP_CHECK(found != by_name.end() && tensors[found->second].file == file, ErrorCode::kCorrupt,
                 "'", index, "' has the tensor '", tensor, "' in '", file,
                 "', which does not hold it");
    }
    add_config(path);
  }

  void add_config(const fs::path& path) {
    std::error_code ignored;
    if (fs::exists(path / kConfig, ignored)) {
      config = detail::read_file((path / kConfig).string(), kMostJsonBytes);
    }
  }
};

WeightSource::WeightSource(const std::string& path) : parts_(std::make_unique<Parts>()) {
  std::error_code ignored;
  const fs::path place(path);
  FSDP_CHECK(fs::exists(place, ignored), ErrorCode::kNotFound, "there is nothing at '", path, "'");
  if (!fs::is_directory(place, ignored)) {
    parts_->add_file(place.parent_path(), place.filename().string());
    parts_->add_config(place.parent_path());
  } else if (!fs::exists(place / kIndexName, ignored) && fs::exists(place / kFileIndex, ignored)) {
    parts_->add_indexed_files(place);
  } else if (!fs::exists(place / kIndexName, ignored) && fs::exists(place / kOneFile, ignored)) {
    parts_->add_file(place, kOneFile);
    parts_->add_config(place);
  } else {
    parts_->add_checkpoint(resolve_checkpoint(path));
  }
}

WeightSource::~WeightSource() = default;
WeightSource::WeightSource(WeightSource&&) noexcept = default;

const std::vector<Tensor>& WeightSource::tensors() const { return parts_->tensors; }
const std::map<std::string, std::string>& WeightSource::aliases() const { return parts_->aliases; }
const std::string& WeightSource::config() const { return parts_->config; }

const Tensor* WeightSource::find(const std::string& name) const {
  const auto found = parts_->by_name.find(name);
  return found == parts_->by_name.end() ? nullptr : &parts_->tensors[found->second];
}

void WeightSource::read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
                        void* dst) const {
  detail::read_tensor(parts_->files.at(tensor.file), tensor, tensor_offset, bytes, dst);
}

}  // namespace fsdp::archive
