// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

#include "engine/store/weight_store.hpp"
#include "engine/unit/slice.hpp"
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
  explicit AliasedStore(memory::Ledger& ledger) : ledger_(ledger) {}

  ~AliasedStore() override {
    works_.clear();
    for (const Unit* unit : units_) {
      strike_slice(ledger_, *unit);
    }
  }

  void make_shards(std::vector<Unit>& units) override {
    addresses_.resize(units.size());
    works_.resize(units.size());
    // In the units' order, which is the same on all ranks.
    for (Unit& unit : units) {
      comm::Communicator* group = unit.placement.shard;
      if (group != nullptr && std::ranges::find(groups_, group) == groups_.end()) {
        groups_.push_back(group);
        make_memory(*group, units);
      }
      group_of_.push_back(group);
    }
  }

  void start(const Unit& unit, int index, int /*slot*/) override {
    works_[static_cast<std::size_t>(index)] =
        group_of_[static_cast<std::size_t>(index)]->agree({index, unit.name});
  }

  void wait(int index) override {
    auto work = std::exchange(works_[static_cast<std::size_t>(index)], nullptr);
    work->wait();
  }

  void release(const Unit&, int, int, bool) override {}

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
  void make_memory(comm::Communicator& group, std::vector<Unit>& units) {
    std::int64_t bytes = 0;
    for (const Unit& unit : units) {
      bytes += unit.placement.shard == &group ? align_up(unit.gathered_bytes()) : 0;
    }
    at::Tensor memory = group.shared_memory(bytes, {.name = "shared weights"});
    FSDP_CHECK(memory.defined(), ErrorCode::kUnsupported,
               "[fully_shard] Store::kAliased needs memory that the ranks which gather from each "
               "other share; transport \"",
               group.transport(),
               "\" has none here (are they all on one host?). Use Store::kSlots");
    char* next = static_cast<char*>(memory.data_ptr());
    for (std::size_t i = 0; i < units.size(); ++i) {
      Unit& unit = units[i];
      if (unit.placement.shard != &group) {
        continue;
      }
      addresses_[i] = next;
      unit.placement.secondary = nullptr;  // nothing moves: there is nothing to save
      const std::int64_t offset = unit.placement.give.first * unit.layout->shard_numel() *
                                  Unit::itemsize_of(unit.param_dtype);
      set_slice(unit, at::from_blob(next + offset, {unit.slice_numel()}, unit.param_dtype));
      enter_slice(ledger_, unit);
      units_.push_back(&unit);
      next += align_up(unit.gathered_bytes());
    }
    memories_.push_back(std::move(memory));
  }

  memory::Ledger& ledger_;
  std::vector<comm::Communicator*> groups_;    ///< distinct
  std::vector<comm::Communicator*> group_of_;  ///< by unit
  std::vector<at::Tensor> memories_;           ///< by group
  std::vector<const Unit*> units_;
  std::vector<void*> addresses_;
  std::vector<std::unique_ptr<comm::Work>> works_;
};

}  // namespace

std::unique_ptr<WeightStore> make_aliased_store(memory::Ledger& ledger) {
  return std::make_unique<AliasedStore>(ledger);
}

}  // namespace fsdp::engine
