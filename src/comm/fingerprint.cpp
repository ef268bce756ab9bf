// SPDX-License-Identifier: Apache-2.0
#include "comm/fingerprint.hpp"

#include <algorithm>
#include <utility>

#include "base/hash.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::comm::detail {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

template <std::size_t kSize>
void copy_text(std::array<char, kSize>& dst, std::string_view src) {
  std::copy_n(src.begin(), std::min(kSize, src.size()), dst.begin());
}

template <std::size_t kSize>
std::string text_of(const std::array<char, kSize>& src) {
  return {src.data(),
          static_cast<std::size_t>(std::find(src.begin(), src.end(), '\0') - src.begin())};
}

std::string describe_payload(const Fingerprint& fingerprint) {
  const std::string dtype = text_of(fingerprint.dtype);
  if (dtype.empty()) {
    return "";
  }
  return " (" + std::to_string(fingerprint.bytes) + " bytes of " + dtype + " a slice)";
}

std::string likely_cause(const Fingerprint& left, const Fingerprint& right) {
  if (left.operation != right.operation || left.unit != right.unit ||
      left.name_hash != right.name_hash) {
    return "the ranks run different code. Is a module or a collective call inside a condition on "
           "the rank or on the data, or is a weight read on one rank only? Wrap such reads in "
           "full_parameters() and make every call on all ranks";
  }
  if (left.announced != right.announced) {
    return "the ranks have started different collectives on their devices before this call. Is a "
           "module or a collective call inside a condition on the rank or on the data?";
  }
  if (left.dtype != right.dtype) {
    return "the ranks hold this unit in different dtypes. Was it converted or loaded differently "
           "on one rank?";
  }
  if (left.root != right.root) {
    return "the ranks name different roots (" + std::to_string(left.root) + " and " +
           std::to_string(right.root) + ")";
  }
  return "the ranks hold different sizes. Were the models built with different shapes or divided "
         "into different units?";
}

}  // namespace

Fingerprint make_fingerprint(const Description& description, std::uint64_t sequence, int rank) {
  Fingerprint fingerprint;
  fingerprint.operation = description.operation;
  fingerprint.sequence = sequence;
  fingerprint.unit = description.unit;
  fingerprint.root = description.root;
  fingerprint.bytes = description.bytes;
  fingerprint.name_hash = base::fnv1a(description.name);
  fingerprint.rank = rank;
  copy_text(fingerprint.dtype, description.dtype);
  copy_text(fingerprint.name, description.name);
  fingerprint.group = description.group;
  fingerprint.announced = description.announced;
  copy_text(fingerprint.group_name, description.group_name);
  return fingerprint;
}

void Announced::add(const Description& description, std::uint64_t in_generation) {
  const Fingerprint next =
      make_fingerprint(description, /*sequence=*/in(in_generation), /*rank=*/0);
  hash = detail::hash(next);
  generation = in_generation;
}

bool same_collective(const Fingerprint& left, const Fingerprint& right) {
  return left.magic == right.magic && left.operation == right.operation &&
         left.sequence == right.sequence && left.unit == right.unit && left.root == right.root &&
         left.bytes == right.bytes && left.name_hash == right.name_hash &&
         left.dtype == right.dtype && left.announced == right.announced;
}

std::uint64_t hash(const Fingerprint& fingerprint) {
  base::Fnv1a hash;
  hash.add_value(fingerprint.operation);
  hash.add_value(fingerprint.sequence);
  hash.add_value(fingerprint.unit);
  hash.add_value(fingerprint.root);
  hash.add_value(fingerprint.bytes);
  hash.add_value(fingerprint.name_hash);
  hash.add_value(fingerprint.dtype);
  hash.add_value(fingerprint.announced);
  return mix(hash.value());
}

std::string describe(const Fingerprint& fingerprint) {
  std::string text = to_string(static_cast<Operation>(fingerprint.operation));
  text += " #" + std::to_string(fingerprint.sequence);
  const std::string name = text_of(fingerprint.name);
  if (fingerprint.unit >= 0) {
    text +=
        name.empty() ? " of unit " + std::to_string(fingerprint.unit) : " of unit \"" + name + "\"";
  } else if (!name.empty()) {
    text += " in \"" + name + "\"";
  }
  if (const std::string group = text_of(fingerprint.group_name); !group.empty()) {
    text += " (group \"" + group + "\")";
  }
  return text;
}

std::string describe_in_full(const Fingerprint& fingerprint) {
  return describe(fingerprint) + describe_payload(fingerprint);
}

std::string describe_mismatch(const Fingerprint& left, const Fingerprint& right) {
  if (right.rank < left.rank) {
    return describe_mismatch(right, left);
  }
  const auto side = [](const Fingerprint& fingerprint) {
    return describe_in_full(fingerprint) + " on rank " + std::to_string(fingerprint.rank);
  };
  return side(left) + " met " + side(right) + ": " + likely_cause(left, right);
}

std::optional<std::string> find_mismatch(std::span<const Fingerprint> by_rank) {
  const auto stranger = std::ranges::find_if_not(
      by_rank, [&](const Fingerprint& of) { return same_collective(by_rank.front(), of); });
  return stranger == by_rank.end() ? std::nullopt
                                   : std::optional(describe_mismatch(by_rank.front(), *stranger));
}

}  // namespace fsdp::comm::detail
