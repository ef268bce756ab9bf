// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>

#include <utility>

#include "engine/weight_store.hpp"
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
  AliasedStore(comm::Communicator& communicator, memory::Ledger& ledger)
      : communicator_(communicator), ledger_(ledger) {}

  ~AliasedStore() override {
    works_.clear();
    ledger_.remove(memory::Kind::kShards, shard_bytes_);
  }

  void make_shards(std::vector<Unit>& units) override {
    std::int64_t bytes = 0;
    for (const Unit& unit : units) {
      bytes += align_up(unit.padded_bytes());
    }
    memory_ = communicator_.shared_memory(bytes, {.name = "shared weights"});
    FSDP_CHECK(memory_.defined(), ErrorCode::kUnsupported,
               "[fully_shard] Store::kAliased needs memory that all ranks share; transport \"",
               communicator_.transport(),
               "\" has none here (are all ranks on one host?). Use Store::kSlots");
    char* next = static_cast<char*>(memory_.data_ptr());
    for (Unit& unit : units) {
      addresses_.push_back(next);
      unit.flat_shard = at::from_blob(next + unit.shard_bytes() * communicator_.rank(),
                                      {unit.layout->shard_numel()}, unit.dtype);
      shard_bytes_ += unit.shard_bytes();
      next += align_up(unit.padded_bytes());
    }
    ledger_.add(memory::Kind::kShards, shard_bytes_);
    works_.resize(units.size());
  }

  void start(const Unit& unit, int index, int /*slot*/) override {
    works_[static_cast<std::size_t>(index)] = communicator_.agree({index, unit.name});
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
  comm::Communicator& communicator_;
  memory::Ledger& ledger_;
  at::Tensor memory_;
  std::vector<void*> addresses_;
  std::vector<std::unique_ptr<comm::Work>> works_;
  std::int64_t shard_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> make_aliased_store(comm::Communicator& communicator,
                                                memory::Ledger& ledger) {
  return std::make_unique<AliasedStore>(communicator, ledger);
}

}  // namespace fsdp::engine
