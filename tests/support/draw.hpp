// SPDX-License-Identifier: Apache-2.0
/// What property tests draw their cases from: a seed from the environment, and numbers that are the
/// same with every standard library.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

namespace fsdp::test {

/// The number in a variable such as FSDP_PROPERTY_SEED.
inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}
  /// Of first..last. Not std::uniform_int_distribution, which differs between libraries.
  int between(int first, int last) {
    return first + static_cast<int>(engine_() % static_cast<std::uint64_t>(last - first + 1));
  }
  bool one_in(int n) { return between(1, n) == 1; }
  template <class T>
  T any_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(between(0, static_cast<int>(values.size()) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace fsdp::test
