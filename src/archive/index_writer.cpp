// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "archive/checksum.hpp"
#include "archive/index_text.hpp"

namespace fsdp::archive {

using nlohmann::ordered_json;

namespace {

ordered_json to_json(const Value& value) {
  return std::visit([](const auto& held) { return ordered_json(held); }, value);
}

ordered_json to_json(const StoredFile& file) {
  return {{"bytes", file.bytes},
          {"head_bytes", file.head_bytes},
          {"head_crc32", crc32_text(file.head_crc32)}};
}

ordered_json to_json(const Tensor& tensor) {
  return {{"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"file", tensor.file},
          {"offsets", {tensor.offset, tensor.offset + tensor.bytes}},
          {"crc32", crc32_text(tensor.crc32)}};
}

/// An object with one member a line, so that people and line-based tools can read it.
class Lines {
 public:
  explicit Lines(int depth) : indent_(static_cast<std::size_t>(depth), ' ') {}
  void add(const std::string& name, const std::string& text) {
    text_ += (text_.empty() ? "{\n " : ",\n ") + indent_ + ordered_json(name).dump() + ": " + text;
  }
  void add(const std::string& name, const ordered_json& value) { add(name, value.dump()); }
  std::string text() const { return text_.empty() ? "{}" : text_ + "\n" + indent_ + "}"; }
  /// Without its end.
  const std::string& open_text() const { return text_; }

 private:
  std::string indent_;
  std::string text_;
};

std::string tensors_text(const Index& index) {
  Lines sections(1);
  for (const Section section : {Section::kModel, Section::kOptimizer, Section::kState}) {
    Lines tensors(2);
    for (const Tensor& tensor : index.tensors) {
      if (tensor.section == section) {
        tensors.add(tensor.name, to_json(tensor));
      }
    }
    sections.add(to_string(section), tensors.text());
  }
  return sections.text();
}

template <class Map>
std::string map_text(const Map& map) {
  Lines lines(1);
  for (const auto& [name, value] : map) {
    lines.add(name, ordered_json(value));
  }
  return lines.text();
}

std::string values_text(const std::map<std::string, Values>& sections) {
  Lines lines(1);
  for (const auto& [name, values] : sections) {
    ordered_json object = ordered_json::object();
    for (const auto& [key, value] : values) {
      object[key] = to_json(value);
    }
    lines.add(name, object);
  }
  return lines.text();
}

}  // namespace

const char* to_string(Section section) {
  switch (section) {
    case Section::kModel: return "model";
    case Section::kOptimizer: return "optimizer";
    case Section::kState: return "state";
  }
  return "unknown";
}

std::string to_text(const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr ? *text : to_json(value).dump();
}

std::string to_json(const Index& index) {
  Lines files(1);
  for (const StoredFile& file : index.files) {
    files.add(file.name, to_json(file));
  }
  Lines top(0);
  top.add("format", ordered_json(detail::kFormatName));
  top.add("version", ordered_json(detail::kVersion));
  top.add("step", ordered_json(index.step));
  top.add("files", files.text());
  top.add("tensors", tensors_text(index));
  top.add("aliases", map_text(index.aliases));
  top.add("steps", map_text(index.steps));
  top.add("values", values_text(index.values));
  return detail::with_sum(top.open_text());
}

}  // namespace fsdp::archive
