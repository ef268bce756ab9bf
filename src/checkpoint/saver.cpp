// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/saver.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "archive/checksum.hpp"
#include "checkpoint/flight.hpp"
#include "checkpoint/items.hpp"
#include "checkpoint/save_plan.hpp"
#include "checkpoint/together.hpp"
#include "comm/named_values.hpp"
#include "comm/on_host.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/shard_access.hpp"

namespace fsdp::checkpoint {

using detail::Holding;
using detail::Item;
using detail::SavePlan;
using detail::together;

namespace {

constexpr std::int64_t kAlignBytes = 64;

/// What ranks' optimizers differ in, as the engine says it in backward; empty for nothing.
std::string difference_of(const World& world, const OptimizerState* optimizer) {
  std::vector<comm::NamedValue> values;
  if (optimizer != nullptr) {
    for (const auto& [group, options] : optimizer->options()) {
      for (const auto& [field, value] : options) {
        if (const auto* number = std::get_if<double>(&value)) {
          values.push_back(
              {comm::name_of_hyper_parameter(field, group, optimizer->kind()), *number});
        }
      }
    }
  }
  return comm::first_difference(world.job(), values);
}

/// All ranks must be about to write the same checkpoint.
void check_agreement(const World& world, const archive::Index& index,
                     const OptimizerState* optimizer) {
  const std::string text = to_json(index);
  struct Claim {
    std::int64_t sum;
    std::int64_t step;
  };
  const auto claims =
      comm::gather_values(world.job(), Claim{archive::crc32(text.data(), text.size()), index.step},
                          "checkpoint: agree");
  const Claim& first = claims.front();
  for (std::size_t rank = 1; rank < claims.size(); ++rank) {
    FSDP_CHECK(claims[rank].step == first.step, ErrorCode::kMismatch, "rank 0 saves step ",
               first.step, ", rank ", rank, " saves step ", claims[rank].step);
    if (claims[rank].sum != first.sum) {  // all ranks see that
      const std::string difference = difference_of(world, optimizer);
      fail(ErrorCode::kMismatch, "ranks 0 and ", rank, " save different things at step ",
           first.step, ": ",
           difference.empty() ? "tensors, optimizer state or RunState::values differ" : difference);
    }
  }
}

std::uint64_t random_key(const World& world) {
  const auto key = static_cast<std::uint64_t>(std::random_device()()) << 31 ^
                   static_cast<std::uint64_t>(std::random_device()());
  return comm::value_of_first(world.job(), key, "checkpoint: key");
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
    // Memory now, lest the first save meet page faults or find none.
    make_places(detail::items_of(sharded_, optimizer_.get()));
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
    std::optional<SavePlan> plan;
    std::vector<char*> places;
    together(world, "checkpoint: plan", [&] {
      FSDP_CHECK(!sharded_.shard_access()->has_waiting_gradients(), ErrorCode::kInvalidArgument,
                 "step ", step,
                 " is to be saved while gradients of a deferred backward wait to be reduced: a "
                 "checkpoint has no gradients, so a run that goes on from it would miss them. Save "
                 "after the optimizer's step, or call zero_grad() to forget them");
      plan =
          detail::make_save_plan(sharded_, optimizer_.get(), step, state, options_.max_file_bytes);
      places = make_places(plan->items);
    });
    check_agreement(world, plan->index, optimizer_.get());
    const archive::Draft draft = begin_draft(step, plan->files);
    flight_ = std::make_unique<detail::Flight>(detail::FlightPlan{
        .draft = draft,
        .rank = world.rank(),
        .ranks = world.size(),
        .pieces = pieces_of(*plan, places),
        .index = std::move(plan->index),
        .commit = {.documents = std::move(plan->documents), .keep = options_.keep}});
    try {
      copy(plan->items, places);
    } catch (...) {
      flight_.reset();
      throw;
    }
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

  void claim(double patience_s) {
    together(sharded_.world(), "checkpoint: claim", [&] {
      if (sharded_.world().rank() == 0) {
        lock_ = std::make_unique<archive::RootLock>(directory_, patience_s);
      }
    });
  }

  const std::string& directory() const { return directory_; }

 private:
  /// The directory of the next save, empty files in it, seen by all ranks.
  archive::Draft begin_draft(std::int64_t step, const std::vector<archive::PlannedFile>& files) {
    const World world = sharded_.world();
    const archive::Draft draft{.root = directory_, .step = step, .key = random_key(world)};
    together(world, "checkpoint: create", [&] {
      if (world.rank() == 0) {
        if (lock_ == nullptr || !lock_->holds(directory_)) {
          lock_ = std::make_unique<archive::RootLock>(directory_);
        }
        archive::create_draft(draft, files);
      }
    });
    try {
      together(world, "checkpoint: find draft", [&] {
        FSDP_CHECK(std::filesystem::is_directory(draft.path()), ErrorCode::kNotFound, "'",
                   draft.path(),
                   "', which rank 0 has made, is not there: all ranks must save to "
                   "one directory of a file system that they share");
      });
    } catch (...) {
      if (world.rank() == 0) {
        archive::abandon_draft(draft);
      }
      throw;
    }
    return draft;
  }

  /// What this rank writes of an item.
  archive::Slice slice_of(const Item& item) const {
    if (item.holding == Holding::kSlice) {
      const std::int64_t begin = item.begin + item.answered_begin;
      return {begin, begin + item.answered_numel};
    }
    return {0, sharded_.world().rank() == 0 ? archive::numel(item.shape) : 0};
  }

  /// Where in the buffer this rank's part of each item goes, one after the other.
  std::vector<char*> make_places(const std::vector<Item>& items) {
    std::vector<std::int64_t> offsets;
    std::int64_t bytes = 0;
    for (const Item& item : items) {
      const archive::Slice slice = slice_of(item);
      offsets.push_back(bytes);
      bytes += (slice.end - slice.begin) * static_cast<std::int64_t>(item.values.itemsize());
      bytes = (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    }
    if (!buffer_.defined() || buffer_.numel() < bytes) {
      buffer_ = at::Tensor();
      const at::TensorOptions memory(at::kByte);
      buffer_ = at::empty({bytes}, device_of(items).is_cpu() ? memory : memory.pinned_memory(true));
      buffer_.fill_(0);
    }
    std::vector<char*> places;
    for (const std::int64_t offset : offsets) {
      places.push_back(static_cast<char*>(buffer_.data_ptr()) + offset);
    }
    return places;
  }

  std::vector<archive::Piece> pieces_of(const SavePlan& plan,
                                        const std::vector<char*>& places) const {
    std::vector<archive::Slice> slices;
    for (const Item& item : plan.items) {
      slices.push_back(slice_of(item));
    }
    std::vector<archive::Piece> pieces;
    for (const archive::ByteRange& range : archive::plan_ranges(plan.index.tensors, slices)) {
      pieces.push_back({.range = range, .data = places[range.tensor]});
    }
    return pieces;
  }

  /// Where weights and state are; the CPU where all are there.
  static c10::Device device_of(const std::vector<Item>& items) {
    const auto found =
        std::ranges::find_if(items, [](const Item& item) { return !item.values.is_cpu(); });
    return found == items.end() ? c10::Device(c10::kCPU) : found->values.device();
  }

  /// Copies this rank's parts; each may be written as soon as it is there, those of a device as
  /// soon as all are: the host waits for it once. @collective for permuted items
  void copy(const std::vector<Item>& items, const std::vector<char*>& places) {
    const World world = sharded_.world();
    const c10::Device device = device_of(items);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      const at::Tensor values = item.holding == Holding::kPermuted ? detail::assemble(world, item)
                                : item.holding == Holding::kSlice  ? item.answered()
                                                                   : item.values.contiguous();
      const archive::Slice slice = slice_of(item);
      if (slice.begin < slice.end) {
        at::from_blob(places[i], values.sizes(), values.options().device(at::kCPU))
            .copy_(values, /*non_blocking=*/true);
      }
      if (device.is_cpu()) {
        flight_->set_copied(i + 1);
      }
    }
    comm::wait_for_current_stream(device);
    flight_->set_copied(items.size());
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
void Saver::claim(double patience_s) { impl_->claim(patience_s); }
const std::string& Saver::directory() const { return impl_->directory(); }

}  // namespace fsdp::checkpoint
