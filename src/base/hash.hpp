// SPDX-License-Identifier: Apache-2.0
/// Hashes that are the same on every machine and in every build, so that ranks may compare them and
/// files may keep them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace fsdp::base {

/// FNV-1a of 64 bits (Fowler, Noll and Vo), a byte at a time. Not against people who want two texts
/// to collide.
class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      value_ = (value_ ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3U;
    }
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  /// The bytes of a number, an enumerator or an array of them.
  template <class Value>
    requires std::has_unique_object_representations_v<Value>
  void add_value(const Value& value) {
    add(std::as_bytes(std::span(&value, 1)));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

inline std::uint64_t fnv1a(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.value();
}

}  // namespace fsdp::base
