// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "engine/gather_slice.hpp"
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
    ledger_.remove(memory::Kind::kLowPrecision, cast_bytes_);
  }

  void make_shards(std::vector<Unit>& units) override {
    std::int64_t bytes = 0;
    for (const Unit& unit : units) {
      bytes += align_up(unit.gathered_bytes());
    }
    memory_ = communicator_.shared_memory(bytes, {.name = "shared weights"});
    FSDP_CHECK(memory_.defined(), ErrorCode::kUnsupported,
               "[fully_shard] Store::kAliased needs memory that all ranks share; transport \"",
               communicator_.transport(),
               "\" has none here (are all ranks on one host?). Use Store::kSlots");
    char* next = static_cast<char*>(memory_.data_ptr());
    for (Unit& unit : units) {
      addresses_.push_back(next);
      const std::int64_t numel = unit.layout->shard_numel();
      const std::int64_t bytes_of_slice = numel * Unit::itemsize_of(unit.param_dtype);
      const at::Tensor slice =
          at::from_blob(next + bytes_of_slice * communicator_.rank(), {numel}, unit.param_dtype);
      if (unit.is_cast()) {
        // The shard is this rank's alone; what is shared is its copy.
        unit.flat_shard = at::zeros({numel}, unit.dtype);
        slices_.emplace_back(slice);
        cast_bytes_ += bytes_of_slice;
      } else {
        unit.flat_shard = slice;
        slices_.emplace_back();
      }
      shard_bytes_ += unit.shard_bytes();
      next += align_up(unit.gathered_bytes());
    }
    ledger_.add(memory::Kind::kShards, shard_bytes_);
    ledger_.add(memory::Kind::kLowPrecision, cast_bytes_);
    works_.resize(units.size());
  }

  void start(const Unit& unit, int index, int /*slot*/) override {
    // See NOTE [when a slice of shared weights may be written].
    casts_ += slices_[static_cast<std::size_t>(index)].renew(unit) ? 1 : 0;
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
  std::vector<GatherSlice> slices_;
  std::vector<void*> addresses_;
  std::vector<std::unique_ptr<comm::Work>> works_;
  std::int64_t shard_bytes_ = 0;
  std::int64_t cast_bytes_ = 0;
};

}  // namespace

std::unique_ptr<WeightStore> make_aliased_store(comm::Communicator& communicator,
                                                memory::Ledger& ledger) {
  return std::make_unique<AliasedStore>(communicator, ledger);
}

}  // namespace fsdp::engine
