// SPDX-License-Identifier: Apache-2.0
/// The fields of one object of a JSON file that says how to build something, each asked for; what
/// nobody asks for is a problem.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace fsdp::format::detail {

/// What cannot be followed, in words, collected over a whole file.
using Problems = std::vector<std::string>;

/// All of them, with "; " in between.
std::string joined(const Problems& problems);

/// A field that is absent and one that is null mean the same.
///
/// *Invariants*: `object` and `problems` outlive it.
class Fields {
 public:
  /// `prefix` stands before names in problems: "rope_scaling.".
  Fields(const nlohmann::ordered_json& object, std::string prefix, Problems& problems)
      : object_(object), prefix_(std::move(prefix)), problems_(problems) {}

  /// The value of a field of that type; `otherwise` when it is absent or of another type, which
  /// then is a problem.
  std::int64_t integer(const std::string& name, std::int64_t otherwise);
  double number(const std::string& name, double otherwise);
  bool truth(const std::string& name, bool otherwise);
  std::string text(const std::string& name, const std::string& otherwise);
  std::optional<std::int64_t> token(const std::string& name);
  /// One token, or a list of them.
  std::vector<std::int64_t> tokens(const std::string& name);
  /// Of a field whose default is not "none": `absent` where it is not there, 0 where it is null.
  std::int64_t integer_or_none(const std::string& name, std::int64_t absent);
  /// The same as integer(), for a field that must be there.
  std::int64_t required(const std::string& name);

  /// A field that this library follows in one way only: it may be absent, null, or `value`.
  void must_be(const std::string& name, const nlohmann::ordered_json& value);
  /// Fields that may be absent, null, false, or an empty list, object or text.
  void must_be_empty(std::initializer_list<const char*> names);
  /// Fields that say nothing about what is built.
  void ignore(std::initializer_list<const char*> names);
  /// nullptr when it is absent or null.
  const nlohmann::ordered_json* find(const std::string& name);

  /// The fields of an object in this one, with its own prefix; problems go to the same list.
  Fields inside(const nlohmann::ordered_json& object, const std::string& prefix) {
    return {object, prefix, problems_};
  }

  void problem(const std::string& text) { problems_.push_back(text); }
  /// Enters every field that nobody asked for.
  void finish();

 private:
  void wrong_type(const std::string& name, const nlohmann::ordered_json& value, const char* wanted);

  const nlohmann::ordered_json& object_;
  std::string prefix_;
  Problems& problems_;
  std::set<std::string> seen_;
};

}  // namespace fsdp::format::detail
