// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "engine/store/weight_store.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::engine {

namespace {

/// Units start at multiples of this in the shared memory.
constexpr std::int64_t kUnitAlignment = 4096;

std::int64_t align_up(std::int64_t bytes) {
  return (bytes + kUnitAlignment - 1) / kUnitAlignment * kUnitAlignment;
}

class AliasedStore : public WeightStore {
 public:
  explicit AliasedStore(const std::vector<Unit>& units)
      : units_(units), addresses_(units.size()), works_(units.size()) {}

  std::vector<at::Tensor> make_slices() override {
    std::vector<at::Tensor> slices(units_.size());
    // In the units' order, which is the same on all ranks.
    for (const Unit& unit : units_) {
      comm::Transport* group = unit.placement.shard;
      if (group != nullptr && std::ranges::find(groups_, group) == groups_.end()) {
        groups_.push_back(group);
        make_memory(*group, slices);
      }
      group_of_.push_back(group);
    }
    return slices;
  }

  void start(int index, int /*slot*/, const Slice& /*slice*/) override {
    const auto unit = static_cast<std::size_t>(index);
    works_[unit] = group_of_[unit]->publish({index, units_[unit].name});
  }

  void wait(int index) override {
    auto work = std::exchange(works_[static_cast<std::size_t>(index)], nullptr);
    work->wait();
  }

  void release(int, int, bool) override {}

  void drop_works() override {
    for (auto& work : works_) {
      work.reset();
    }
  }

  void* address(int index, int /*slot*/) override {
    return addresses_[static_cast<std::size_t>(index)];
  }

  bool needs_fence() const override { return true; }

 private:
  /// One piece of memory for all units that this group gathers.
  void make_memory(comm::Transport& group, std::vector<at::Tensor>& slices) {
    std::int64_t bytes = 0;
    for (const Unit& unit : units_) {
      bytes += unit.placement.shard == &group ? align_up(unit.gathered_bytes()) : 0;
    }
    at::Tensor memory = group.shared_memory(bytes, {.name = "shared weights"});
    FSDP_CHECK(memory.defined(), ErrorCode::kUnsupported,
               "[fully_shard] Store::kAliased needs memory that the ranks which gather from each "
               "other share; transport \"",
               group.traits().name,
               "\" has none here (are they all on one host?). Use Store::kSlots");
    char* next = static_cast<char*>(memory.data_ptr());
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const Unit& unit = units_[i];
      if (unit.placement.shard != &group) {
        continue;
      }
      addresses_[i] = next;
      const std::int64_t offset = unit.placement.give.first * unit.layout->shard_numel() *
                                  Unit::itemsize_of(unit.param_dtype);
      slices[i] = at::from_blob(next + offset, {unit.slice_numel()}, unit.param_dtype);
      next += align_up(unit.gathered_bytes());
    }
    memories_.push_back(std::move(memory));
  }

  const std::vector<Unit>& units_;
  std::vector<comm::Transport*> groups_;    ///< distinct
  std::vector<comm::Transport*> group_of_;  ///< by unit
  std::vector<at::Tensor> memories_;        ///< by group
  std::vector<void*> addresses_;
  std::vector<std::unique_ptr<comm::Work>> works_;
};

}  // namespace

std::unique_ptr<WeightStore> make_aliased_store(const std::vector<Unit>& units) {
  return std::make_unique<AliasedStore>(units);
}

}  // namespace fsdp::engine
