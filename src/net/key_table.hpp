// SPDX-License-Identifier: Apache-2.0
/// What a job's store remembers, and what it answers: no sockets, no threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace fsdp::net {

/// Texts under keys. *Thread safety*: none.
class KeyTable {
 public:
  /// `max_bytes` of keys and texts are kept; what would be more is refused.
  explicit KeyTable(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// The answer to a request; none to what is no request. See NOTE [the job's store].
  std::optional<std::string> answer(std::string_view request);

  std::size_t bytes() const { return bytes_; }

 private:
  std::string put(std::string_view key, std::string_view text);
  std::string add(std::string_view key, std::int64_t delta);
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view text);
  bool erase(std::string_view key);

  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::string, std::string> texts_;
};

}  // namespace fsdp::net
