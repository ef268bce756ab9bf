// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/loader.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "archive/checksum.hpp"
#include "checkpoint/items.hpp"
#include "checkpoint/matching.hpp"
#include "checkpoint/read_matches.hpp"
#include "checkpoint/together.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::checkpoint {

using archive::Section;
using detail::Holding;
using detail::Item;
using detail::Match;
using detail::ReadSum;

namespace {

/// One rank's part of a tensor, as ranks tell each other.
struct Part {
  std::int64_t begin;
  std::int64_t crc32;
  std::int64_t bytes;
};

/// The sum of a whole tensor from its parts, joined in the order of their places.
std::uint32_t joined(std::vector<Part> parts) {
  std::ranges::sort(parts, {}, &Part::begin);
  std::uint32_t sum = 0;
  for (const Part& part : parts) {
    if (part.bytes > 0) {
      sum = archive::crc32_joined(sum, static_cast<std::uint32_t>(part.crc32), part.bytes);
    }
  }
  return sum;
}

/// Compares each tensor's sum: a whole one by itself, slices joined.
void check_sums(const World& world, const archive::Checkpoint& checkpoint,
                const std::vector<Match>& matches, const std::vector<ReadSum>& sums) {
  const auto count = std::ssize(matches);
  std::vector<Part> own;
  own.reserve(matches.size());
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const ReadSum& sum = sums[static_cast<std::size_t>(i)];
    const Item& item = *matches[static_cast<std::size_t>(i)].item;
    own.push_back({item.begin + item.answered_begin, sum.crc32, sum.bytes});
  }
  const auto parts = comm::gather_values(world.job(), own, "checkpoint: sums");
  std::string damaged;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const Match& match = matches[static_cast<std::size_t>(i)];
    const int ranks = match.item->holding == Holding::kSlice ? world.size() : 1;
    std::vector<Part> of_ranks;
    for (int rank = 0; rank < ranks; ++rank) {
      of_ranks.push_back(parts[static_cast<std::size_t>(count * rank + i)]);
    }
    const std::uint32_t sum = joined(std::move(of_ranks));
    if (sum != match.stored->crc32) {
      damaged += "; '" + match.stored->name + "' in " + match.stored->file + " has the sum " +
                 archive::crc32_text(sum) + ", the index says " +
                 archive::crc32_text(match.stored->crc32);
    }
  }
  FSDP_CHECK(damaged.empty(), ErrorCode::kCorrupt, "'", checkpoint.path(),
             "' is damaged, load an older one", damaged);
}

/// This rank's stream: its own at the world size that saved, else one that follows from the first.
at::Tensor stream_of(const archive::Checkpoint& checkpoint, const World& world) {
  const archive::Index& index = checkpoint.index();
  const archive::Tensor* first = index.find(Section::kState, "rng.cpu.0");
  if (first == nullptr) {
    return {};
  }
  const auto name = [](int rank) { return "rng.cpu." + std::to_string(rank); };
  const bool same_size = index.find(Section::kState, name(world.size() - 1)) != nullptr &&
                         index.find(Section::kState, name(world.size())) == nullptr;
  const archive::Tensor& stored =
      same_size ? *index.find(Section::kState, name(world.rank())) : *first;
  at::Tensor state = at::empty({stored.bytes}, at::kByte);
  checkpoint.read(stored, 0, stored.bytes, state.data_ptr());
  const std::uint32_t sum =
      archive::crc32(state.const_data_ptr(), static_cast<std::size_t>(stored.bytes));
  FSDP_CHECK(sum == stored.crc32, ErrorCode::kCorrupt, "'", checkpoint.path(), "': '", stored.name,
             "' has the sum ", archive::crc32_text(sum), ", the index says ",
             archive::crc32_text(stored.crc32));
  if (same_size) {
    return state;
  }
  const std::int64_t circumstances[] = {index.step, world.rank(), world.size()};
  const std::uint32_t high = archive::crc32(circumstances, sizeof circumstances, sum);
  return at::detail::createCPUGenerator(std::uint64_t{high} << 32 | sum).get_state();
}

/// The names under which a checkpoint may have a parameter's state: those of the parameter here,
/// and for a tied weight the one under which it was stored.
std::vector<std::string> stored_names(const NamedShard& parameter, const archive::Index& index) {
  std::vector<std::string> names{parameter.name};
  names.insert(names.end(), parameter.aliases.begin(), parameter.aliases.end());
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    const auto alias = index.aliases.find(names[i]);
    if (alias != index.aliases.end()) {
      names.push_back(alias->second);
    }
  }
  return names;
}

/// Returns how many step counters were loaded. In a file that has some, a parameter without one has
/// never been stepped; rules that count none leave all out.
std::int64_t load_steps(OptimizerState& optimizer, const archive::Index& index,
                        const std::vector<NamedShard>& parameters) {
  std::map<std::string, std::int64_t> steps;
  for (const NamedShard& parameter : parameters) {
    for (const std::string& name : stored_names(parameter, index)) {
      const auto found = index.steps.find(name);
      if (found != index.steps.end()) {
        steps.emplace(parameter.name, found->second);
      }
    }
  }
  const std::int64_t loaded = std::ssize(steps);
  if (loaded > 0) {
    for (const NamedShard& parameter : parameters) {
      steps.emplace(parameter.name, 0);
    }
  }
  optimizer.set_steps(steps);
  return loaded;
}

/// Moments of one rule mean something else to another, also where they have the same names.
void check_kind(const OptimizerState& optimizer, const archive::Checkpoint& checkpoint) {
  const auto section = checkpoint.index().values.find("optimizer");
  if (section == checkpoint.index().values.end() || !section->second.contains("kind")) {
    return;
  }
  const std::string stored = archive::to_text(section->second.at("kind"));
  FSDP_CHECK(stored == optimizer.kind(), ErrorCode::kMismatch, "'", checkpoint.path(),
             "' has the state of the optimizer ", stored, ", this one is ", optimizer.kind(),
             ": load without an optimizer to take the weights alone");
}

void load_options(OptimizerState& optimizer, const archive::Index& index) {
  constexpr std::string_view kGroup = "optimizer.group.";
  std::map<std::string, archive::Values> groups;
  for (const auto& [section, values] : index.values) {
    if (section.starts_with(kGroup)) {
      groups[section.substr(kGroup.size())] = values;
    }
  }
  optimizer.set_options(groups);
}

/// The states that are stored, by the names that their parameters have here.
StoredStates stored_states(const archive::Index& index, const std::vector<NamedShard>& parameters) {
  std::map<std::string, std::vector<std::string>> here;  // several for what is no longer tied
  for (const NamedShard& parameter : parameters) {
    for (const std::string& name : stored_names(parameter, index)) {
      here[name].push_back(parameter.name);
    }
  }
  StoredStates stored;
  for (const archive::Tensor& tensor : index.tensors) {
    if (tensor.section != Section::kOptimizer) {
      continue;
    }
    // A state of one's own may have dots in its name, too.
    for (std::size_t dot = tensor.name.rfind('.'); dot != std::string::npos && dot > 0;
         dot = tensor.name.rfind('.', dot - 1)) {
      const auto found = here.find(tensor.name.substr(0, dot));
      if (found != here.end()) {
        for (const std::string& parameter : found->second) {
          stored[parameter].insert(tensor.name.substr(dot + 1));
        }
        break;
      }
    }
  }
  return stored;
}

/// State that is stored must have room here, and what is not stored was never there.
void allocate_state(OptimizerState& optimizer, const archive::Checkpoint& checkpoint,
                    const std::vector<NamedShard>& parameters, bool is_strict) {
  const archive::Index& index = checkpoint.index();
  const bool has_optimizer = index.values.contains("optimizer");
  FSDP_CHECK(has_optimizer || !is_strict, ErrorCode::kMismatch, "'", checkpoint.path(),
             "' was saved without an optimizer, and one of kind ", optimizer.kind(),
             " is to be loaded from it. Pass none, or LoadOptions::strict = false, which loads the "
             "weights alone");
  if (has_optimizer) {
    optimizer.allocate(stored_states(index, parameters));
  }
}

std::string resolve(const std::string& path, const World& world) {
  std::string resolved;
  detail::together(world, "checkpoint: find", [&] {
    if (world.rank() != 0) {
      return;
    }
    resolved = archive::resolve_checkpoint(path);
    if (resolved != path) {
      for (const auto& skipped : archive::latest_checkpoint(path).skipped) {
        base::log(base::LogLevel::kWarn, "'", skipped.path,
                  "' is incomplete and skipped: ", skipped.problem);
      }
    }
  });
  return detail::broadcast_text(world, resolved, "checkpoint: path");
}

}  // namespace

LoadReport load(const std::string& path, Sharded& sharded, OptimizerState* optimizer,
                const LoadOptions& options) {
  const c10::NoGradGuard no_grad;
  const World world = sharded.world();
  LoadReport report{.path = resolve(path, world)};
  std::optional<archive::Checkpoint> checkpoint;
  std::vector<Item> items;
  std::vector<Match> matches;
  detail::together(world, "checkpoint: open", [&] {
    checkpoint.emplace(report.path, archive::SumCheck::kByCaller);
    if (optimizer != nullptr) {
      if (options.strict) {
        check_kind(*optimizer, *checkpoint);
      }
      allocate_state(*optimizer, *checkpoint, sharded.named_parameters(), options.strict);
    }
    items = detail::items_of(sharded, optimizer);
    matches = detail::match(items, checkpoint->index(), optimizer != nullptr, report);
    if (options.strict) {
      detail::require_all(report);
    }
  });
  detail::announce_writes(sharded);
  std::vector<ReadSum> sums;
  detail::together(world, "checkpoint: read", [&] {
    sums = detail::read_matches(detail::bytes_of(*checkpoint), matches, options.verify);
    report.rng = stream_of(*checkpoint, world);
    if (optimizer != nullptr) {
      report.entries = load_steps(*optimizer, checkpoint->index(), sharded.named_parameters());
      if (options.optimizer_options) {
        load_options(*optimizer, checkpoint->index());
      }
    }
  });
  if (options.verify) {
    check_sums(world, *checkpoint, matches, sums);
  }
  report.step = checkpoint->index().step;
  report.values = checkpoint->index().values;
  report.entries += std::ssize(matches);
  return report;
}

at::Tensor rng_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(const at::Tensor& state) {
  if (state.defined()) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace fsdp::checkpoint
