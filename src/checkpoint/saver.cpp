// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/saver.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "checkpoint/flight.hpp"
#include "checkpoint/items.hpp"
#include "checkpoint/together.hpp"
#include "fsdp/archive/checksum.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::checkpoint {

using archive::Section;
using detail::Holding;
using detail::Item;

namespace {

constexpr std::int64_t kAlignBytes = 64;

/// Random numbers: each rank's stream is a tensor that this rank alone holds.
void add_streams(std::vector<Item>& items, const at::Tensor& rng, const World& world) {
  for (int rank = 0; rng.defined() && rank < world.size(); ++rank) {
    items.push_back({.section = Section::kState,
                     .name = "rng.cpu." + std::to_string(rank),
                     .shape = {rng.numel()},
                     .values = rank == world.rank() ? rng : rng.narrow(0, 0, 0)});
  }
}

/// Everything about a save that is known before a byte is copied.
struct Plan {
  std::vector<Item> items;
  std::vector<archive::PlannedFile> files;
  archive::Index index;
  std::map<std::string, std::string> documents;
};

void add_section(Plan& plan, Section section, std::int64_t max_file_bytes) {
  std::vector<format::TensorEntry> entries;
  for (const Item& item : plan.items) {
    if (item.section == section) {
      entries.push_back(
          {item.name, detail::dtype_name(item.values.scalar_type(), item.name), item.shape});
    }
  }
  const archive::FilePlan files =
      archive::plan_files(section, entries, {{"format", "pt"}}, max_file_bytes);
  plan.files.insert(plan.files.end(), files.files.begin(), files.files.end());
  archive::add_plan(plan.index, files);
  const std::string map = archive::weight_map_json(files);
  if (section == Section::kModel && !map.empty()) {
    plan.documents["model.safetensors.index.json"] = map;
  }
}

Plan make_plan(const Sharded& sharded, const OptimizerState* optimizer, std::int64_t step,
               const RunState& state, std::int64_t max_file_bytes) {
  FSDP_CHECK(!state.values.contains("optimizer"), ErrorCode::kInvalidArgument,
             "the section \"optimizer\" of RunState::values is taken");
  Plan plan{.items = detail::items_of(sharded, optimizer),
            .files = {},
            .index = {.step = step, .values = state.values},
            .documents = state.documents};
  add_streams(plan.items, state.rng, sharded.world());
  for (const Section section : {Section::kModel, Section::kOptimizer, Section::kState}) {
    add_section(plan, section, max_file_bytes);
  }
  for (const NamedShard& parameter : sharded.named_parameters()) {
    for (const std::string& alias : parameter.aliases) {
      plan.index.aliases[alias] = parameter.name;
    }
  }
  if (optimizer != nullptr) {
    plan.index.steps = optimizer->steps();
    plan.index.values["optimizer"]["kind"] = optimizer->kind();
    for (auto& [group, options] : optimizer->options()) {
      plan.index.values["optimizer.group." + group] = options;
    }
  }
  if (state.rng.defined()) {
    plan.index.values["rng"]["streams"] = std::int64_t{sharded.world().size()};
  }
  return plan;
}

/// All ranks must be about to write the same checkpoint.
void check_agreement(const World& world, const archive::Index& index) {
  const std::string text = to_json(index);
  const std::int64_t sum = archive::crc32(text.data(), text.size());
  const at::Tensor own = at::tensor({sum, index.step}, at::kLong);
  const at::Tensor all = at::empty({2 * world.size()}, at::kLong);
  world.communicator().all_gather(all, own, {.name = "checkpoint: agree"})->wait();
  const auto* said = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < world.size(); ++rank) {
    FSDP_CHECK(said[2 * rank + 1] == said[1], ErrorCode::kMismatch, "rank 0 saves step ", said[1],
               ", rank ", rank, " saves step ", said[2 * rank + 1]);
    FSDP_CHECK(said[2 * rank] == said[0], ErrorCode::kMismatch, "ranks 0 and ", rank,
               " save different things at step ", said[1],
               ": tensors, optimizer state or RunState::values differ");
  }
}

std::uint64_t random_key(const World& world) {
  at::Tensor key = at::tensor({static_cast<std::int64_t>(std::random_device()()) << 31 ^
                               static_cast<std::int64_t>(std::random_device()())},
                              at::kLong);
  world.communicator().broadcast(key, 0, {.name = "checkpoint: key"})->wait();
  return static_cast<std::uint64_t>(*key.const_data_ptr<std::int64_t>());
}

}  // namespace

class Saver::Impl {
 public:
  Impl(std::string directory, Sharded sharded, std::unique_ptr<OptimizerState> optimizer,
       SaverOptions options)
      : directory_(std::move(directory)),
        sharded_(std::move(sharded)),
        optimizer_(std::move(optimizer)),
        options_(options) {
    FSDP_CHECK(!directory_.empty(), ErrorCode::kInvalidArgument,
               "a checkpoint needs a directory, its name is empty");
    FSDP_CHECK(options_.keep >= 0, ErrorCode::kInvalidArgument, "keep is ", options_.keep,
               ", must be 0 or more");
    std::int64_t bytes = 0;
    for (const Item& item : detail::items_of(sharded_, optimizer_.get())) {
      bytes += detail_bytes(item);
    }
    reserve(bytes);
  }

  ~Impl() {
    if (flight_ != nullptr) {
      const std::string failure = flight_->end_alone();
      if (!failure.empty()) {
        base::log(base::LogLevel::kWarn, "the last checkpoint was not saved: ", failure);
      }
    }
  }

  void save(std::int64_t step, const RunState& state) {
    c10::NoGradGuard no_grad;
    wait();
    const World world = sharded_.world();
    std::optional<Plan> plan;
    together(world, "checkpoint: plan", [&] {
      plan = make_plan(sharded_, optimizer_.get(), step, state, options_.max_file_bytes);
    });
    check_agreement(world, plan->index);
    const archive::Draft draft{.root = directory_, .step = step, .key = random_key(world)};
    together(world, "checkpoint: create", [&] {
      if (world.rank() == 0) {
        if (lock_ == nullptr) {
          lock_ = std::make_unique<archive::RootLock>(directory_);
        }
        archive::create_draft(draft, plan->files);
      }
    });
    std::vector<archive::Piece> pieces = snapshot(plan->items, plan->index.tensors);
    flight_ = std::make_unique<detail::Flight>(detail::FlightPlan{
        .draft = draft,
        .rank = world.rank(),
        .ranks = world.size(),
        .index = std::move(plan->index),
        .pieces = std::move(pieces),
        .commit = {.documents = std::move(plan->documents), .keep = options_.keep}});
  }

  void wait() {
    if (flight_ == nullptr) {
      return;
    }
    // Whatever comes of it, this save is over.
    const std::unique_ptr<detail::Flight> flight = std::move(flight_);
    const World world = sharded_.world();
    try {
      together(world, "checkpoint: write", [&] { flight->wait_written(); });
    } catch (...) {
      flight->give_up();
      throw;
    }
    together(world, "checkpoint: commit", [&] { flight->wait_committed(); });
  }

  const std::string& directory() const { return directory_; }

 private:
  static void together(const World& world, const std::string& name,
                       const std::function<void()>& phase) {
    detail::together(world, name, phase);
  }

  std::int64_t detail_bytes(const Item& item) const {
    const bool is_mine = item.is_shard() || sharded_.world().rank() == 0;
    const auto bytes = is_mine ? static_cast<std::int64_t>(item.values.nbytes()) : 0;
    return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  }

  /// Memory for the copies; touched once, so that a save meets no page fault.
  void reserve(std::int64_t bytes) {
    if (!buffer_.defined() || buffer_.numel() < bytes) {
      buffer_ = at::Tensor();
      buffer_ = at::empty({bytes}, at::kByte);
      std::memset(buffer_.data_ptr(), 0, static_cast<std::size_t>(bytes));
    }
  }

  /// What this rank writes of an item, and where it lies in the logical tensor.
  struct Part {
    at::Tensor values;
    archive::Slice slice;
  };

  Part part_of(const Item& item) const {
    const World world = sharded_.world();
    if (item.holding == Holding::kSlice) {
      return {item.values, {item.begin, item.begin + item.values.numel()}};
    }
    const at::Tensor whole =
        item.holding == Holding::kPermuted ? detail::assemble(world, item) : item.values;
    if (world.rank() != 0) {
      return {item.values.flatten().narrow(0, 0, 0), {}};
    }
    return {whole.contiguous().flatten(), {0, whole.numel()}};
  }

  /// Copies this rank's parts one after the other into the buffer. @collective for permuted items
  std::vector<archive::Piece> snapshot(const std::vector<Item>& items,
                                       const std::vector<archive::Tensor>& tensors) {
    std::vector<archive::Slice> slices;
    std::vector<std::int64_t> offsets;
    std::vector<at::Tensor> parts;
    std::int64_t bytes = 0;
    for (const Item& item : items) {
      Part part = part_of(item);
      slices.push_back(part.slice);
      offsets.push_back(bytes);
      bytes += (static_cast<std::int64_t>(part.values.nbytes()) + kAlignBytes - 1) / kAlignBytes *
               kAlignBytes;
      parts.push_back(std::move(part.values));
    }
    reserve(bytes);
    char* base = static_cast<char*>(buffer_.data_ptr());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].numel() > 0) {
        at::from_blob(base + offsets[i], parts[i].sizes(), parts[i].options().device(at::kCPU))
            .copy_(parts[i]);
      }
    }
    std::vector<archive::Piece> pieces;
    for (const archive::ByteRange& range : archive::plan_ranges(tensors, slices)) {
      pieces.push_back({.range = range, .data = base + offsets[range.tensor]});
    }
    return pieces;
  }

  std::string directory_;
  Sharded sharded_;
  std::unique_ptr<OptimizerState> optimizer_;
  SaverOptions options_;
  std::unique_ptr<archive::RootLock> lock_;
  at::Tensor buffer_;
  std::unique_ptr<detail::Flight> flight_;  ///< reads the buffer: destroyed before it
};

Saver::Saver(std::string directory, Sharded sharded, std::unique_ptr<OptimizerState> optimizer,
             SaverOptions options)
    : impl_(std::make_unique<Impl>(std::move(directory), std::move(sharded), std::move(optimizer),
                                   options)) {}
Saver::~Saver() = default;
void Saver::save(std::int64_t step, const RunState& state) { impl_->save(step, state); }
void Saver::wait() { impl_->wait(); }
const std::string& Saver::directory() const { return impl_->directory(); }

}  // namespace fsdp::checkpoint
