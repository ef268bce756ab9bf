// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <charconv>
#include <limits>
#include <set>

#include "archive/index_text.hpp"
#include "format/checked_json.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive {
namespace {

using format::detail::as_size;
using nlohmann::ordered_json;

/// Reads members by name and says which one is wrong, and where.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  const ordered_json& member(const ordered_json& object, const std::string& where,
                             const char* name) const {
    check(object.is_object() && object.contains(name), where, " has no '", name, "'");
    return object[name];
  }
  const ordered_json& object(const ordered_json& parent, const std::string& where,
                             const char* name) const {
    const ordered_json& value = member(parent, where, name);
    check(value.is_object(), where, ": '", name, "' is not an object");
    return value;
  }
  std::string text(const ordered_json& value, const std::string& what) const {
    check(value.is_string(), what, " is not a text");
    return value.get<std::string>();
  }
  std::int64_t size(const ordered_json& value, const std::string& what) const {
    return as_size(value, path_, what);
  }
  /// A count of steps; more than a double can count was never taken.
  std::int64_t steps(const ordered_json& value, const std::string& what) const {
    constexpr std::int64_t kMost = std::int64_t{1} << 53;
    const std::int64_t steps = size(value, what);
    check(steps <= kMost, what, " is ", steps, ", no run took more than ", kMost);
    return steps;
  }
  std::uint32_t sum(const ordered_json& value, const std::string& what) const {
    const std::string digits = text(value, what);
    std::uint32_t sum = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), sum, 16);
    check(digits.size() == 8 && error == std::errc() && end == digits.data() + digits.size(), what,
          " '", digits, "' is not eight hexadecimal digits");
    return sum;
  }
  template <class... Parts>
  void check(bool good, const Parts&... parts) const {
    FSDP_CHECK(good, ErrorCode::kCorrupt, "'", path_, "': ", parts...);
  }

  StoredFile file(const std::string& name, const ordered_json& value) const {
    const std::string where = "file '" + name + "'";
    return {.name = name,
            .bytes = size(member(value, where, "bytes"), where + ": bytes"),
            .head_bytes = size(member(value, where, "head_bytes"), where + ": head_bytes"),
            .head_crc32 = sum(member(value, where, "head_crc32"), where + ": head_crc32")};
  }

  Tensor tensor(Section section, const std::string& name, const ordered_json& value) const {
    const std::string where = std::string(to_string(section)) + " tensor '" + name + "'";
    Tensor tensor{.section = section, .name = name};
    tensor.dtype = text(member(value, where, "dtype"), where + ": dtype");
    tensor.file = text(member(value, where, "file"), where + ": file");
    tensor.crc32 = sum(member(value, where, "crc32"), where + ": crc32");
    const ordered_json& shape = member(value, where, "shape");
    check(shape.is_array(), where, ": its shape is not a list");
    for (const ordered_json& length : shape) {
      tensor.shape.push_back(size(length, where + ": a size"));
    }
    const ordered_json& offsets = member(value, where, "offsets");
    check(offsets.is_array() && offsets.size() == 2, where, ": its offsets are not two numbers");
    tensor.offset = size(offsets[0], where + ": its begin");
    const std::int64_t end = size(offsets[1], where + ": its end");
    check(end >= tensor.offset, where, " begins at ", tensor.offset, " and ends at ", end);
    tensor.bytes = end - tensor.offset;
    return tensor;
  }

  Value value(const ordered_json& stored, const std::string& what) const {
    if (stored.is_boolean()) {
      return stored.get<bool>();
    }
    if (stored.is_number_float()) {
      return stored.get<double>();
    }
    if (stored.is_null()) {  // JSON has no NaN
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (stored.is_string()) {
      return stored.get<std::string>();
    }
    check(stored.is_number_integer() &&
              (!stored.is_number_unsigned() ||
               stored.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max()),
          what, " is neither a number, a truth nor a text");
    return stored.get<std::int64_t>();
  }

 private:
  const std::string& path_;
};

void read_tensors(const Reader& reader, const ordered_json& top, Index& index) {
  const ordered_json& sections = reader.object(top, "the index", "tensors");
  for (const Section section : {Section::kModel, Section::kOptimizer, Section::kState}) {
    for (const auto& [name, value] :
         reader.object(sections, "tensors", to_string(section)).items()) {
      reader.check(!name.empty(), "a tensor has no name");
      index.tensors.push_back(reader.tensor(section, name, value));
    }
  }
}

void read_maps(const Reader& reader, const ordered_json& top, Index& index) {
  for (const auto& [alias, name] : reader.object(top, "the index", "aliases").items()) {
    index.aliases[alias] = reader.text(name, "alias '" + alias + "'");
  }
  for (const auto& [name, steps] : reader.object(top, "the index", "steps").items()) {
    index.steps[name] = reader.steps(steps, "steps of '" + name + "'");
  }
  for (const auto& [section, values] : reader.object(top, "the index", "values").items()) {
    reader.check(values.is_object(), "values '", section, "' are not an object");
    for (const auto& [key, value] : values.items()) {
      index.values[section][key] = reader.value(value, "value '" + section + "." + key + "'");
    }
  }
}

}  // namespace

Index parse_index(const std::string& path, std::string_view text) {
  detail::check_sum(path, text);
  const ordered_json top = format::detail::parse_object(path, text, 0);
  const Reader reader(path);
  reader.check(
      reader.text(reader.member(top, "the index", "format"), "format") == detail::kFormatName,
      "its format is not '", detail::kFormatName, "'");
  const std::int64_t version = reader.size(reader.member(top, "the index", "version"), "version");
  FSDP_CHECK(version == detail::kVersion, ErrorCode::kUnsupported, "'", path, "' has version ",
             version, " of the format; this program reads version ", detail::kVersion);
  Index index{.step = reader.steps(reader.member(top, "the index", "step"), "step")};
  for (const auto& [name, value] : reader.object(top, "the index", "files").items()) {
    index.files.push_back(reader.file(name, value));
  }
  read_tensors(reader, top, index);
  read_maps(reader, top, index);
  detail::check_index(path, index);
  return index;
}

}  // namespace fsdp::archive
