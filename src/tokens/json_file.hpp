// SPDX-License-Identifier: Apache-2.0
/// JSON from outside, and files as a whole.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::tokens::detail {

/// All bytes of a file. @throws Error kNotFound or kIo
std::string read_file(const std::string& path);

/// Parses `text` as one object. @throws Error kCorrupt naming `path` and the byte where it is no
/// JSON, a name that an object has twice (nlohmann would keep one of them), and nesting deeper than
/// any tokenizer has (destroying such a value would end the stack)
nlohmann::json parse_json(const std::string& path, std::string_view text);

/// An object whose every member must be known, so that nothing is ignored.
class KnownObject {
 public:
  /// `place` is what messages call it: "pre_tokenizer". @throws Error kCorrupt when it is no object
  KnownObject(const std::string& path, std::string place, const nlohmann::json& value);

  /// @throws Error kUnsupported naming a member that is not listed
  void allow(std::initializer_list<std::string_view> names) const;

  /// The member, or null.
  const nlohmann::json& get(const char* name) const;
  /// @throws Error kCorrupt when it is there and of another type
  bool flag(const char* name, bool otherwise) const;
  std::string text(const char* name, const std::string& otherwise) const;
  std::int64_t integer(const char* name) const;

  /// @throws Error kUnsupported unless the member is missing, null, false or ""
  void refuse(const char* name) const;
  [[noreturn]] void refuse_type() const;

  const std::string& path() const { return path_; }
  const std::string& place() const { return place_; }

 private:
  const std::string& path_;
  std::string place_;
  const nlohmann::json& value_;
};

}  // namespace fsdp::tokens::detail
