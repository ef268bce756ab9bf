// SPDX-License-Identifier: Apache-2.0
#include "python/src/options.hpp"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::python {

namespace py = pybind11;

namespace {

template <class T>
T get(const py::dict& given, const char* name) {
  return given[name].cast<T>();
}

template <class Enum>
Enum word(const py::dict& given, const char* name,
          std::initializer_list<std::pair<const char*, Enum>> known) {
  const auto text = get<std::string>(given, name);
  std::string words;
  for (const auto& [name_of_value, value] : known) {
    if (text == name_of_value) {
      return value;
    }
    words += std::string(words.empty() ? "" : ", ") + "\"" + name_of_value + "\"";
  }
  fail(ErrorCode::kInvalidArgument, "[fully_shard] ", name, " is \"", text, "\", must be one of ",
       words);
}

Strategy strategy_of(const py::dict& given) {
  return word<Strategy>(given, "strategy",
                        {{"full_shard", Strategy::kFullShard},
                         {"shard_grad", Strategy::kShardGrad},
                         {"replicate", Strategy::kReplicate},
                         {"hybrid", Strategy::kHybrid},
                         {"hybrid_optimizer", Strategy::kHybridOptimizer},
                         {"secondary_shard", Strategy::kSecondaryShard}});
}

using Type = std::optional<at::ScalarType>;

MixedPrecision precision_of(const py::dict& given) {
  return {.param = get<Type>(given, "param"),
          .reduce = get<Type>(given, "reduce"),
          .output = get<Type>(given, "output"),
          .buffers = get<Type>(given, "buffers"),
          .full_precision = units_listed(get<std::vector<std::string>>(given, "full_precision")),
          .low_precision_shards = get<bool>(given, "low_precision_shards"),
          .allow_unscaled = get<bool>(given, "allow_unscaled")};
}

UnitRule rule_of(const py::dict& given) {
  UnitRule rule{.units = units_listed(get<std::vector<std::string>>(given, "units")),
                .keep_gathered = get<std::optional<bool>>(given, "keep_gathered"),
                .optional = get<std::optional<bool>>(given, "optional"),
                .param = get<Type>(given, "param")};
  if (!given["strategy"].is_none()) {
    rule.strategy = strategy_of(given);
  }
  return rule;
}

MemoryOptions memory_of(const py::dict& given) {
  MemoryOptions memory{
      .prefetch = get<int>(given, "prefetch"),
      .extra_slots = get<int>(given, "extra_slots"),
      .align_bytes = get<std::int64_t>(given, "align_bytes"),
      .store = word<Store>(
          given, "store",
          {{"auto", Store::kAuto}, {"slots", Store::kSlots}, {"aliased", Store::kAliased}}),
      .moments = get<int>(given, "moments")};
  if (get<bool>(given, "offload")) {
    memory.offload = Offload{};
  }
  return memory;
}

GradientDivisor divisor_of(const py::handle& given) {
  if (py::isinstance<py::str>(given)) {
    const auto text = given.cast<std::string>();
    FSDP_CHECK(text == "mean" || text == "sum", ErrorCode::kInvalidArgument,
               "[fully_shard] gradient_divisor is \"", text,
               "\", must be \"mean\", \"sum\" or a number");
    return text == "mean" ? GradientDivisor::kMean : GradientDivisor::kSum;
  }
  return given.cast<double>();
}

}  // namespace

Options options_of(const py::dict& given) {
  Options options;
  options.units = units_listed(get<std::vector<std::string>>(given, "units"));
  options.strategy = strategy_of(given);
  options.mesh = get<std::optional<DeviceMesh>>(given, "mesh");
  options.replicate_below = get<std::int64_t>(given, "replicate_below");
  for (const py::handle rule : given["rules"]) {
    options.rules.push_back(rule_of(rule.cast<py::dict>()));
  }
  options.memory = memory_of(given);
  options.ignore = get<std::vector<std::string>>(given, "ignore");
  options.initial_weights = word<InitialWeights>(
      given, "initial_weights",
      {{"broadcast", InitialWeights::kBroadcast}, {"check_equal", InitialWeights::kCheckEqual}});
  options.precision = precision_of(given["precision"].cast<py::dict>());
  options.gradient_divisor = divisor_of(given["gradient_divisor"]);
  options.skip_non_finite = get<bool>(given, "skip_non_finite");
  options.debug.print_promise = get<bool>(given, "print_promise");
  options.debug.poison_freed = get<bool>(given, "poison_freed");
  return options;
}

}  // namespace fsdp::python
