// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <utility>

#include "engine/gather_slice.hpp"
#include "engine/weight_store.hpp"

namespace fsdp::engine {

namespace {

class SlotStore : public WeightStore {
 public:
  SlotStore(comm::Communicator& communicator, memory::Ledger& ledger, const StoreConfig& config)
      : communicator_(communicator), ledger_(ledger), config_(config) {}

  ~SlotStore() override {
    works_.clear();
    ledger_.remove(memory::Kind::kGatherSlots, slot_bytes_);
    ledger_.remove(memory::Kind::kShards, shard_bytes_);
    ledger_.remove(memory::Kind::kLowPrecision, cast_bytes_);
  }

  void make_shards(std::vector<Unit>& units) override {
    for (Unit& unit : units) {
      unit.flat_shard = at::zeros({unit.layout->shard_numel()},
                                  at::TensorOptions(unit.dtype).device(unit.device));
      shard_bytes_ += unit.shard_bytes();
      at::Tensor copy;
      if (unit.is_cast()) {
        copy = at::empty({unit.layout->shard_numel()},
                         at::TensorOptions(unit.param_dtype).device(unit.device));
        cast_bytes_ += static_cast<std::int64_t>(copy.nbytes());
      }
      slices_.emplace_back(std::move(copy));
    }
    ledger_.add(memory::Kind::kShards, shard_bytes_);
    ledger_.add(memory::Kind::kLowPrecision, cast_bytes_);
    const c10::Device device = units.front().device;
    const auto allocate = [&](std::int64_t bytes) {
      slots_.push_back(at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
      slot_bytes_ += bytes;
    };
    for (int slot = 0; slot < config_.slots; ++slot) {
      allocate(largest_of(units, &Unit::gathered_bytes, config_.kept_unit));
    }
    if (config_.kept_unit >= 0) {
      allocate(units[static_cast<std::size_t>(config_.kept_unit)].gathered_bytes());
    }
    ledger_.add(memory::Kind::kGatherSlots, slot_bytes_);
    works_.resize(units.size());
    // A view of each slot for each unit that can land there, made once: gathers allocate nothing.
    for (std::size_t i = 0; i < units.size(); ++i) {
      std::vector<at::Tensor>& views = views_.emplace_back();
      for (at::Tensor& slot : slots_) {
        const bool fits = slot.numel() >= units[i].gathered_bytes();
        views.push_back(fits ? at::from_blob(slot.data_ptr(), {units[i].layout->padded_numel()},
                                             at::TensorOptions(units[i].param_dtype).device(device))
                             : at::Tensor());
      }
    }
  }

  void start(const Unit& unit, int index, int slot) override {
    const auto i = static_cast<std::size_t>(index);
    casts_ += slices_[i].renew(unit) ? 1 : 0;
    works_[i] = communicator_.all_gather(views_[i][static_cast<std::size_t>(slot)],
                                         slices_[i].values(unit), {index, unit.name});
  }

  void wait(int index) override {
    auto work = std::exchange(works_[static_cast<std::size_t>(index)], nullptr);
    work->wait();
  }

  void release(const Unit& unit, int index, int slot, bool poison) override {
    if (poison && unit.device.is_cpu() && unit.gathered_bytes() > 0) {
      // Every dtype's all-ones pattern is NaN for floats and -1 for integers.
      std::memset(address(index, slot), 0xff, static_cast<std::size_t>(unit.gathered_bytes()));
    }
  }

  void drop_works() override {
    for (auto& work : works_) {
      work.reset();
    }
  }

  void* address(int index, int slot) override {
    return views_[static_cast<std::size_t>(index)][static_cast<std::size_t>(slot)].data_ptr();
  }

  bool needs_fence() const override { return false; }

 private:
  comm::Communicator& communicator_;
  memory::Ledger& ledger_;
  StoreConfig config_;
  std::vector<GatherSlice> slices_;
  std::vector<at::Tensor> slots_;
  std::vector<std::vector<at::Tensor>> views_;  ///< [unit][slot]
  std::vector<std::unique_ptr<comm::Work>> works_;
  std::int64_t shard_bytes_ = 0;
  std::int64_t cast_bytes_ = 0;
  std::int64_t slot_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> make_slot_store(comm::Communicator& communicator,
                                             memory::Ledger& ledger, const StoreConfig& config) {
  return std::make_unique<SlotStore>(communicator, ledger, config);
}

}  // namespace fsdp::engine
