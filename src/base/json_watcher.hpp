// SPDX-License-Identifier: Apache-2.0
/// What a JSON parser accepts without a word and a file format must not. A template, so that base
/// needs no JSON library.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::base {

/// Sees every event of an nlohmann parser of type Json; answers true, which keeps all.
/// @throws Error kCorrupt for a name that one object has twice (nlohmann keeps one of them), and
/// for nesting deeper than `most_nesting` (printing or destroying such a value would end the stack)
template <class Json>
class JsonWatcher {
 public:
  /// `object` is what messages call the thing that has names: "the header".
  JsonWatcher(const std::string& path, std::string object, std::size_t most_nesting)
      : path_(path), object_(std::move(object)), most_nesting_(most_nesting) {}

  bool operator()(typename Json::parse_event_t event, const Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      FSDP_CHECK(open_.size() < most_nesting_, ErrorCode::kCorrupt, "'", path_,
                 "': its JSON is nested more than ", most_nesting_, " deep");
      open_.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      open_.pop_back();
    } else if (event == Event::key) {
      const auto name = parsed.template get<std::string>();
      FSDP_CHECK(open_.back().insert(name).second, ErrorCode::kCorrupt, "'", path_, "': ", object_,
                 " has the name '", name, "' twice");
    }
    return true;
  }

 private:
  const std::string& path_;
  std::string object_;
  std::size_t most_nesting_;
  std::vector<std::unordered_set<std::string>> open_;
};

}  // namespace fsdp::base
