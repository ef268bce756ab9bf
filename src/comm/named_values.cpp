// SPDX-License-Identifier: Apache-2.0
#include "comm/named_values.hpp"

#include <bit>
#include <sstream>

#include "base/hash.hpp"

namespace fsdp::comm {

namespace {

std::string text_of(double value) {
  std::ostringstream text;
  text.precision(8);
  text << value;
  return text.str();
}

}  // namespace

std::string name_of_hyper_parameter(const std::string& field, const std::string& first,
                                    const std::string& optimizer) {
  return field + " of the group of \"" + first + "\" in " + optimizer;
}

std::uint32_t comparable(double value) {
  return std::bit_cast<std::uint32_t>(static_cast<float>(value) + 0.0F);  // -0 is 0
}

std::string first_difference(Job& job, const std::vector<NamedValue>& values) {
  const Label label{.name = "which values differ"};
  const auto counts = gather_values(job, static_cast<std::int64_t>(values.size()), label.name);
  for (std::size_t rank = 1; rank < counts.size(); ++rank) {
    if (counts[rank] != counts[0]) {
      return "rank 0 has " + std::to_string(counts[0]) +
             " hyper-parameters in its optimizers and "
             "rank " +
             std::to_string(rank) + " has " + std::to_string(counts[rank]);
    }
  }
  if (values.empty()) {
    return {};
  }
  struct Entry {
    std::uint64_t name;
    double value;
  };
  std::vector<Entry> own;
  own.reserve(values.size());
  for (const NamedValue& value : values) {
    own.push_back({base::fnv1a(value.name), value.value});
  }
  const auto all = gather_values(job, own, label.name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (int rank = 1; rank < job.size(); ++rank) {
      const Entry& theirs = all[values.size() * static_cast<std::size_t>(rank) + i];
      if (theirs.name != all[i].name) {
        return "ranks 0 and " + std::to_string(rank) + " have other optimizers or groups";
      }
      if (comparable(theirs.value) != comparable(all[i].value)) {
        return values[i].name + " is " + text_of(all[i].value) + " on rank 0 and " +
               text_of(theirs.value) + " on rank " + std::to_string(rank);
      }
    }
  }
  return {};
}

}  // namespace fsdp::comm
