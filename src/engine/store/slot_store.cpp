// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "comm/tensor_at.hpp"
#include "engine/store/weight_store.hpp"
#include "engine/unit/home.hpp"

namespace fsdp::engine {

namespace {

// NOTE [upload before gather]
// A unit that is offloaded is gathered in two steps: its slice is sent to its place in the slot,
// and the all-gather runs in place from there. The second needs the first, and a prefetch must
// block nobody: so start() begins the transfer, and the all-gather is issued when the schedule
// starts another gather or a reduction, or waits for this one. By then the transfer has had a
// unit's computation to end in. These moments are the same on all ranks, hence so is the order of
// collectives. With `prefetch` of 1 the transfer hides behind computation, with 2 the all-gather
// does as well. Secondary shards lie on the device already.

class SlotStore : public WeightStore {
 public:
  SlotStore(const std::vector<Unit>& units, const Bundles& bundles, memory::Ledger& ledger,
            StoreConfig config)
      : units_(units), ledger_(ledger), config_(std::move(config)), works_(units.size()) {
    make_slots(bundles);
    reserve_gathers(bundles);
  }

  ~SlotStore() override {
    drop_works();
    ledger_.remove(memory::Kind::kGatherSlots, slot_bytes_);
    ledger_.remove(memory::Kind::kStaging, staging_bytes_);
  }

  std::vector<at::Tensor> make_slices() override { return std::vector<at::Tensor>(units_.size()); }

  void start(int index, int slot, const Slice& slice) override {
    launch();
    const Unit& unit = at(index);
    const at::Tensor& dst = views_[static_cast<std::size_t>(index)][static_cast<std::size_t>(slot)];
    GatherSource source = slice.gather_source();
    if (!unit.is_offloaded() || slice.has_secondary()) {
      gather(index, dst, source);
      return;
    }
    const at::Tensor src = std::exchange(source.src, place_of_slice(unit, dst));
    uploads_.push_back({.index = index,
                        .dst = dst,
                        .source = source,
                        .ticket = unit.home.copier->start(source.src, src)});
  }

  void launch() override {
    while (!uploads_.empty()) {
      launch_first();
    }
  }

  void wait(int index) override {
    // What comes after it in the queue is for later.
    while (std::ranges::find(uploads_, index, &Upload::index) != uploads_.end()) {
      launch_first();
    }
    auto work = std::exchange(works_[static_cast<std::size_t>(index)], nullptr);
    work->wait();
  }

  void release(int index, int slot, bool poison) override {
    const Unit& unit = at(index);
    if (poison && unit.device.is_cpu() && unit.gathered_bytes() > 0) {
      // Every dtype's all-ones pattern is NaN for floats and -1 for integers.
      std::memset(address(index, slot), 0xff, static_cast<std::size_t>(unit.gathered_bytes()));
    }
  }

  void drop_works() override {
    for (auto& work : works_) {
      work.reset();
    }
    for (const Upload& upload : std::exchange(uploads_, {})) {
      abandon(at(upload.index), upload.ticket);
    }
  }

  void* address(int index, int slot) override {
    return views_[static_cast<std::size_t>(index)][static_cast<std::size_t>(slot)].data_ptr();
  }

  bool needs_fence() const override { return false; }

 private:
  struct Upload {
    int index;  ///< of the unit
    at::Tensor dst;
    GatherSource source;  ///< its src is a part of dst
    std::uint64_t ticket;
  };

  void launch_first() {
    const Upload upload = std::move(uploads_.front());
    uploads_.pop_front();
    at(upload.index).home.copier->wait(upload.ticket);
    gather(upload.index, upload.dst, upload.source);
  }

  const Unit& at(int index) const { return units_[static_cast<std::size_t>(index)]; }

  void gather(int index, const at::Tensor& dst, const GatherSource& source) {
    works_[static_cast<std::size_t>(index)] =
        source.group->all_gather(dst, source.src, {index, at(index).name});
  }

  void make_slots(const Bundles& bundles) {
    const Places places = place(units_, bundles, [](const Unit& unit, std::size_t) {
      return unit.placement.is_resident() ? 0 : unit.gathered_bytes();
    });
    const c10::Device device = units_.front().device;
    const auto allocate = [&](std::int64_t bytes) {
      slots_.push_back(at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
      slot_bytes_ += bytes;
    };
    for (int slot = 0; slot < config_.slots; ++slot) {
      allocate(places.largest([&](int bundle) {
        return std::ranges::find(config_.kept, bundle) == config_.kept.end();
      }));
    }
    for (int bundle : config_.kept) {
      allocate(places.bytes[static_cast<std::size_t>(bundle)]);
    }
    ledger_.add(memory::Kind::kGatherSlots, slot_bytes_);
    // A view of each slot for each unit that can land there, made once: gathers allocate nothing.
    for (std::size_t i = 0; i < units_.size(); ++i) {
      std::vector<at::Tensor>& views = views_.emplace_back();
      for (at::Tensor& slot : slots_) {
        const bool fits = slot.numel() >= places.offset[i] + units_[i].gathered_bytes();
        views.push_back(
            fits ? comm::tensor_at(static_cast<char*>(slot.data_ptr()) + places.offset[i],
                                   units_[i].layout->padded_numel(), units_[i].param_dtype, device)
                 : at::Tensor());
      }
    }
  }

  /// What the transports need beyond the slots, by group of ranks.
  void reserve_gathers(const Bundles& bundles) {
    std::map<comm::Transport*, std::int64_t> largest;
    for (const Unit& unit : units_) {
      for (comm::Transport* group : {unit.placement.shard, unit.placement.secondary}) {
        largest[group] = std::max(largest[group], unit.gathered_bytes());
      }
    }
    std::size_t most_members = 1;
    for (int bundle = 0; bundle < bundles.count(); ++bundle) {
      most_members = std::max(most_members, bundles.members(bundle).size());
    }
    const int in_flight = static_cast<int>(slots_.size() * most_members);
    for (const auto& [group, bytes] : largest) {
      staging_bytes_ += group == nullptr ? 0 : group->reserve_gathers(bytes, in_flight);
    }
    ledger_.add(memory::Kind::kStaging, staging_bytes_);
  }

  const std::vector<Unit>& units_;
  memory::Ledger& ledger_;
  StoreConfig config_;
  std::vector<at::Tensor> slots_;
  std::vector<std::vector<at::Tensor>> views_;  ///< [unit][slot]
  std::vector<std::unique_ptr<comm::Work>> works_;
  std::deque<Upload> uploads_;  ///< whose gathers are not issued yet, in their order
  std::int64_t slot_bytes_ = 0, staging_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> make_slot_store(const std::vector<Unit>& units, const Bundles& bundles,
                                             memory::Ledger& ledger, StoreConfig config) {
  return std::make_unique<SlotStore>(units, bundles, ledger, std::move(config));
}

}  // namespace fsdp::engine
