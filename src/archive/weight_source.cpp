// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "archive/file.hpp"
#include "archive/index_text.hpp"
#include "archive/pickles.hpp"
#include "archive/read_tensor.hpp"
#include "archive/tensor_source.hpp"
#include "format/checked_json.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {

namespace fs = std::filesystem;
using detail::File;
using detail::TensorSource;

namespace {

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kFileIndex = "model.safetensors.index.json";
constexpr const char* kConfig = "config.json";
constexpr std::int64_t kMostJsonBytes = std::int64_t{1} << 28;

/// Safetensors files, open.
class FileReader : public detail::TensorReader {
 public:
  explicit FileReader(std::map<std::string, File> files) : files_(std::move(files)) {}
  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
            void* dst) const override {
    detail::read_tensor(files_.at(tensor.file), tensor, tensor_offset, bytes, dst);
  }
  void will_read(const Tensor& tensor, std::int64_t tensor_offset,
                 std::int64_t bytes) const override {
    files_.at(tensor.file).will_read(bytes, tensor.offset + tensor_offset);
  }

 private:
  std::map<std::string, File> files_;
};

/// A checkpoint's tensors.
class CheckpointReader : public detail::TensorReader {
 public:
  explicit CheckpointReader(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
            void* dst) const override {
    checkpoint_.read(tensor, tensor_offset, bytes, dst);
  }
  void check_sum(const Tensor& tensor) const override { checkpoint_.check_sum(tensor); }
  void will_read(const Tensor& tensor, std::int64_t tensor_offset,
                 std::int64_t bytes) const override {
    checkpoint_.will_read(tensor, tensor_offset, bytes);
  }

 private:
  Checkpoint checkpoint_;
};

/// Lists the tensors of safetensors files.
class FileLister {
 public:
  TensorSource source;
  std::map<std::string, std::size_t> by_name;
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
    FSDP_CHECK(by_name.emplace(tensor.name, source.tensors.size()).second, ErrorCode::kCorrupt, "'",
               path, "': the tensor '", tensor.name, "' is in another file, too");
    source.tensors.push_back(tensor);
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
      FSDP_CHECK(found != by_name.end() && source.tensors[found->second].file == file,
                 ErrorCode::kCorrupt, "'", index, "' has the tensor '", tensor, "' in '", file,
                 "', which does not hold it");
    }
    source.documents = detail::read_documents(path.string());
  }
};

TensorSource open_checkpoint(const std::string& path, SumCheck sums) {
  Checkpoint checkpoint(path, sums);
  TensorSource source{.aliases = checkpoint.index().aliases,
                      .documents = detail::read_documents(path)};
  for (const Tensor& tensor : checkpoint.index().tensors) {
    if (tensor.section == Section::kModel) {
      source.tensors.push_back(tensor);
    }
  }
  source.reader = std::make_unique<CheckpointReader>(std::move(checkpoint));
  return source;
}

/// Shards of several files, as Hugging Face names them, say nothing without their index.
void refuse_shards_without_index(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    FSDP_CHECK(!name.ends_with(".safetensors") || name.find("-of-") == std::string::npos,
               ErrorCode::kNotFound, "'", directory.string(), "' holds ", name, " but no ",
               kFileIndex, ", which says what lies in which file: fetch it, too");
  }
}

TensorSource open_files(const std::string& path, SumCheck sums) {
  std::error_code ignored;
  const fs::path place(path);
  FileLister lister;
  if (!fs::is_directory(place, ignored)) {
    lister.add_file(place.parent_path(), place.filename().string());
    lister.source.documents = detail::read_documents(place.parent_path().string());
  } else if (!fs::exists(place / kIndexName, ignored) && fs::exists(place / kFileIndex, ignored)) {
    lister.add_indexed_files(place);
  } else if (!fs::exists(place / kIndexName, ignored) && fs::exists(place / kOneFile, ignored)) {
    lister.add_file(place, kOneFile);
    lister.source.documents = detail::read_documents(path);
  } else {
    if (!fs::exists(place / kIndexName, ignored)) {
      refuse_shards_without_index(place);
    }
    return open_checkpoint(resolve_checkpoint(path), sums);
  }
  lister.source.reader = std::make_unique<FileReader>(std::move(lister.files));
  return std::move(lister.source);
}

}  // namespace

std::map<std::string, std::string> detail::read_documents(const std::string& directory) {
  std::map<std::string, std::string> documents;
  for (const char* name :
       {kConfig, "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
        "tokenizer.model", "chat_template.jinja", "adapter_config.json"}) {
    std::error_code ignored;
    const fs::path path = fs::path(directory) / name;
    if (fs::exists(path, ignored)) {
      documents[name] = read_file(path.string(), kMostJsonBytes);
    }
  }
  return documents;
}

std::string hint_for_part(const std::string& path) {
  std::error_code ignored;
  const fs::path file(path);
  const std::string name = file.filename().string();
  if (!fs::is_regular_file(file, ignored) || !name.ends_with(".safetensors")) {
    return "";
  }
  const std::string directory = file.has_parent_path() ? file.parent_path().string() : ".";
  if (fs::exists(fs::path(directory) / kFileIndex, ignored)) {
    return ". It is one file of several: give their directory, '" + directory + "', whose " +
           kFileIndex + " says what lies in which file";
  }
  return name.find("-of-") == std::string::npos
             ? ""
             : ". It is one file of several, to judge by its name: put the others and " +
                   std::string(kFileIndex) + " beside it, and give their directory, '" + directory +
                   "'";
}

struct WeightSource::Parts {
  TensorSource source;
  std::map<std::string, std::size_t> by_name;

  explicit Parts(TensorSource opened) : source(std::move(opened)) {
    for (std::size_t i = 0; i < source.tensors.size(); ++i) {
      by_name.emplace(source.tensors[i].name, i);
    }
  }
};

WeightSource::WeightSource(const std::string& path, SumCheck sums) {
  std::error_code ignored;
  FSDP_CHECK(fs::exists(path, ignored), ErrorCode::kNotFound, "there is nothing at '", path, "'");
  detail::refuse_pickles(path);
  parts_ = std::make_unique<Parts>(path.ends_with(".gguf") ? detail::open_gguf(path)
                                                           : open_files(path, sums));
}

WeightSource::WeightSource(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

WeightSource WeightSource::with_adapter(const std::string& path, const std::string& adapter,
                                        SumCheck sums) {
  return WeightSource(std::make_unique<Parts>(detail::open_adapted(path, adapter, sums)));
}

WeightSource::~WeightSource() = default;
WeightSource::WeightSource(WeightSource&&) noexcept = default;

const std::vector<Tensor>& WeightSource::tensors() const { return parts_->source.tensors; }
const std::map<std::string, std::string>& WeightSource::aliases() const {
  return parts_->source.aliases;
}
const std::map<std::string, std::string>& WeightSource::documents() const {
  return parts_->source.documents;
}

const std::string& WeightSource::config() const {
  static const std::string kNone;
  const auto found = parts_->source.documents.find(kConfig);
  return found == parts_->source.documents.end() ? kNone : found->second;
}

const Tensor* WeightSource::find(const std::string& name) const {
  const auto found = parts_->by_name.find(name);
  return found == parts_->by_name.end() ? nullptr : &parts_->source.tensors[found->second];
}

void WeightSource::read(const Tensor& tensor, std::int64_t tensor_offset, std::int64_t bytes,
                        void* dst) const {
  parts_->source.reader->read(tensor, tensor_offset, bytes, dst);
}

void WeightSource::check_sum(const Tensor& tensor) const {
  parts_->source.reader->check_sum(tensor);
}

void WeightSource::will_read(const Tensor& tensor, std::int64_t tensor_offset,
                             std::int64_t bytes) const {
  parts_->source.reader->will_read(tensor, tensor_offset, bytes);
}

}  // namespace fsdp::archive
