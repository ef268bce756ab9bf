// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/manifest.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "comm/on_host.hpp"
#include "engine/touch/deferred.hpp"
#include "engine/unit/precision.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

const char* to_string(std::optional<at::ScalarType> type) {
  return type.has_value() ? c10::toString(*type) : "as it is";
}

/// One line a fact, so that the first line that differs says what differs.
std::string write_manifest(const std::vector<Unit>& units, const Options& options, int world_size,
                           bool transport_takes_device) {
  std::ostringstream text;
  text << "world size " << world_size << "\n"
       << "device is " << c10::DeviceTypeName(units.front().device.type(), /*lower_case=*/true)
       << "\n"
       << "transport " << (transport_takes_device ? "takes" : "refuses") << " that device\n"
       << "alignment of slices " << options.memory.align_bytes << " bytes\n"
       << "option memory.prefetch is " << options.memory.prefetch << "\n"
       << "option memory.extra_slots is " << options.memory.extra_slots << "\n"
       << "option strategy is " << to_string(options.strategy) << "\n"
       << "option mesh is " << (options.mesh ? options.mesh->describe() : "none") << "\n"
       << "option gradient_divisor is " << to_string(options.gradient_divisor) << "\n"
       << "option memory.store is number " << static_cast<int>(options.memory.store) << "\n"
       << "option memory.offload is " << (options.memory.offload.has_value() ? "on" : "off") << "\n"
       << "option initial_weights is number " << static_cast<int>(options.initial_weights) << "\n"
       << "option skip_non_finite is " << (options.skip_non_finite ? "true" : "false") << "\n"
       << "option precision.output is " << to_string(options.precision.output) << "\n"
       << "option precision.buffers is " << to_string(options.precision.buffers) << "\n";
  for (std::size_t i = 0; i < options.rules.size(); ++i) {
    text << "rule " << i << " is \"" << to_string(options.rules[i]) << "\"\n";
  }
  text << "rule " << options.rules.size() << " is none\n";
  for (const Unit& unit : units) {
    for (const Parameter& parameter : unit.parameters) {
      text << "parameter \"" << parameter.name << "\" has shape "
           << c10::IntArrayRef(parameter.sizes) << ", strides "
           << c10::IntArrayRef(parameter.strides) << ", "
           << describe({unit.dtype, unit.param_dtype, unit.reduce_dtype}) << ", reduced in "
           << c10::toString(unit.reduce_dtype)
           << (parameter.tensor.requires_grad() ? "" : ", frozen") << ", in unit \"" << unit.name
           << "\", " << to_string(unit.placement.strategy) << (unit.is_optional ? ", optional" : "")
           << (unit.is_kept ? ", kept" : "") << "\n";
    }
  }
  text << "end of the parameters\n";
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// Of one rank's manifest.
struct Head {
  std::int64_t hash = 0;
  std::int64_t bytes = 0;
  bool operator==(const Head&) const = default;
};

}  // namespace

void agree_on_manifest(comm::Job& job, const std::vector<Unit>& units, const Options& options,
                       bool transport_takes_device) {
  const std::string own = write_manifest(units, options, job.size(), transport_takes_device);
  // Sizes first: what every rank sends has the same size, whatever it says.
  const Head head{.hash = static_cast<std::int64_t>(std::hash<std::string>{}(own)),
                  .bytes = std::ssize(own)};
  const auto heads = comm::gather_values(job, head, "fully_shard: manifest");
  if (std::ranges::count(heads, heads.front()) == std::ssize(heads)) {
    return;
  }
  const auto longest = static_cast<std::size_t>(std::ranges::max(heads, {}, &Head::bytes).bytes);
  std::vector<char> text(own.begin(), own.end());
  text.resize(longest);
  const auto texts = comm::gather_values(job, text, "fully_shard: manifest text");
  std::vector<std::vector<std::string>> manifests;
  manifests.reserve(heads.size());
  for (std::size_t rank = 0; rank < heads.size(); ++rank) {
    manifests.push_back(lines_of(
        std::string(texts.data() + rank * longest, static_cast<std::size_t>(heads[rank].bytes))));
  }
  for (int rank = 1; rank < job.size(); ++rank) {
    const auto& first = manifests[0];
    const auto& other = manifests[static_cast<std::size_t>(rank)];
    for (std::size_t line = 0; line < std::min(first.size(), other.size()); ++line) {
      FSDP_CHECK(first[line] == other[line], ErrorCode::kMismatch,
                 "[fully_shard] ranks disagree before training: on rank 0 ", first[line],
                 "; on rank ", rank, " ", other[line],
                 ". All ranks must build the same model with the same options");
    }
  }
  fail(ErrorCode::kMismatch, "[fully_shard] ranks disagree about the model");
}

void check_equal_weights(comm::Job& job, const std::vector<Unit>& units) {
  std::vector<std::int64_t> hashes;
  std::vector<const Parameter*> parameters;
  for (const Unit& unit : units) {
    for (const Parameter& parameter : unit.parameters) {
      const at::Tensor values = comm::on_host(values_of(parameter.tensor));
      const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()),
                                   values.nbytes());
      hashes.push_back(static_cast<std::int64_t>(std::hash<std::string_view>{}(bytes)));
      parameters.push_back(&parameter);
    }
  }
  const auto all = comm::gather_values(job, hashes, "fully_shard: equal weights");
  for (int rank = 1; rank < job.size(); ++rank) {
    const auto row = static_cast<std::size_t>(rank) * hashes.size();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      FSDP_CHECK(
          all[row + i] == all[i], ErrorCode::kMismatch, "[fully_shard] parameter \"",
          parameters[i]->name, "\" has other values on rank ", rank,
          " than on rank 0: seed all ranks alike, or let InitialWeights::kBroadcast copy rank "
          "0's");
    }
  }
}

}  // namespace fsdp::engine
