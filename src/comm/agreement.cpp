// SPDX-License-Identifier: Apache-2.0
#include "fsdp/comm/agreement.hpp"

#include <algorithm>

#include "fsdp/comm/job.hpp"

namespace fsdp {

StepAgreement agree_on_step(const World& world, bool has_batch, Uneven mode) {
  const auto have = comm::gather_values(world.job(), std::int64_t{has_batch ? 1 : 0},
                                        mode == Uneven::kStop ? "agree: stop" : "agree: fill");
  const auto active = static_cast<int>(std::ranges::count(have, 1));
  const int needed = mode == Uneven::kStop ? world.size() : 1;
  return {.go_on = active >= needed, .weight = has_batch ? 1.0 : 0.0, .active = active};
}

namespace {
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}
}  // namespace

double shared_uniform(std::uint64_t seed, std::uint64_t step, std::uint64_t index) {
  constexpr int kMantissaBits = 53;
  const std::uint64_t bits = mix(mix(mix(seed) ^ step) ^ index);
  return static_cast<double>(bits >> (64 - kMantissaBits)) *
         (1.0 / static_cast<double>(std::uint64_t{1} << kMantissaBits));
}

}  // namespace fsdp
