// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/bundle.hpp"
#include "engine/slice.hpp"
#include "engine/weight_store.hpp"

namespace fsdp::engine {

namespace {

class SlotStore : public WeightStore {
 public:
  SlotStore(memory::Ledger& ledger, StoreConfig config)
      : ledger_(ledger), config_(std::move(config)) {}

  ~SlotStore() override {
    works_.clear();
    ledger_.remove(memory::Kind::kGatherSlots, slot_bytes_);
    for (const Unit* unit : units_) {
      strike_slice(ledger_, *unit);
    }
  }

  void make_shards(std::vector<Unit>& units) override {
    for (Unit& unit : units) {
      if (!unit.placement.is_resident()) {
        set_slice(unit, at::zeros({unit.slice_numel()},
                                  at::TensorOptions(unit.param_dtype).device(unit.device)));
        enter_slice(ledger_, unit);
        units_.push_back(&unit);
      }
    }
    make_slots(units);
    works_.resize(units.size());
  }

  void start(const Unit& unit, int index, int slot) override {
    const auto i = static_cast<std::size_t>(index);
    const GatherSource source = gather_source(unit);
    works_[i] = source.group->all_gather(views_[i][static_cast<std::size_t>(slot)], source.src,
                                         {index, unit.name});
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
  void make_slots(const std::vector<Unit>& units) {
    const Bundles bundles(units);
    const Places places = place(units, bundles, [](const Unit& unit) {
      return unit.placement.is_resident() ? 0 : unit.gathered_bytes();
    });
    const c10::Device device = units.front().device;
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
    for (std::size_t i = 0; i < units.size(); ++i) {
      std::vector<at::Tensor>& views = views_.emplace_back();
      for (at::Tensor& slot : slots_) {
        const bool fits = slot.numel() >= places.offset[i] + units[i].gathered_bytes();
        views.push_back(fits ? at::from_blob(static_cast<char*>(slot.data_ptr()) + places.offset[i],
                                             {units[i].layout->padded_numel()},
                                             at::TensorOptions(units[i].param_dtype).device(device))
                             : at::Tensor());
      }
    }
  }

  memory::Ledger& ledger_;
  StoreConfig config_;
  std::vector<const Unit*> units_;
  std::vector<at::Tensor> slots_;
  std::vector<std::vector<at::Tensor>> views_;  ///< [unit][slot]
  std::vector<std::unique_ptr<comm::Work>> works_;
  std::int64_t slot_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> make_slot_store(memory::Ledger& ledger, StoreConfig config) {
  return std::make_unique<SlotStore>(ledger, std::move(config));
}

}  // namespace fsdp::engine
