// SPDX-License-Identifier: Apache-2.0
#include "engine/unit/home.hpp"

#include <ATen/ops/zeros.h>

#include <utility>

#include "comm/tensor_at.hpp"
#include "engine/unit/stream_copier.hpp"

namespace fsdp::engine {

namespace {

class CountingCopier : public Copier {
 public:
  CountingCopier(std::shared_ptr<Copier> copier, Counters& counters)
      : copier_(std::move(copier)), counters_(counters) {}

  std::uint64_t start(at::Tensor dst, at::Tensor src) override {
    ++counters_.transfers;
    counters_.transfer_bytes += static_cast<std::int64_t>(src.nbytes());
    return copier_->start(std::move(dst), std::move(src));
  }
  void wait(std::uint64_t ticket) override { copier_->wait(ticket); }

 private:
  std::shared_ptr<Copier> copier_;
  Counters& counters_;
};

}  // namespace

std::unique_ptr<Copier> make_copier(const Options& options, c10::Device device,
                                    Counters& counters) {
  if (!options.memory.offload.has_value()) {
    return nullptr;
  }
  std::shared_ptr<Copier> copier = options.memory.offload->copier;
  if (copier == nullptr && device.is_cpu()) {
    return nullptr;
  }
  if (copier == nullptr) {
    copier = make_stream_copier(device);
  }
  return std::make_unique<CountingCopier>(std::move(copier), counters);
}

void set_home(std::vector<Unit>& units, const Options& options, Copier* copier) {
  const bool pins = options.memory.offload.has_value() && options.memory.offload->pin_memory;
  for (Unit& unit : units) {
    unit.home = copier == nullptr ? Home{.device = unit.device}
                                  : Home{.device = c10::kCPU,
                                         .is_pinned = pins && !unit.device.is_cpu(),
                                         .copier = copier};
  }
}

at::Tensor zeros_at_home(const Unit& unit, std::int64_t numel, at::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype).device(unit.home.device);
  return at::zeros({numel}, unit.home.is_pinned ? options.pinned_memory(true) : options);
}

at::Tensor plain(const at::Tensor& tensor) {
  return comm::tensor_at(tensor.data_ptr(), tensor.numel(), tensor.scalar_type(), tensor.device());
}

void transfer(const Unit& unit, const at::Tensor& dst, const at::Tensor& src) {
  if (!unit.is_offloaded()) {
    dst.copy_(src);
    return;
  }
  unit.home.copier->wait(unit.home.copier->start(plain(dst), plain(src)));
}

void abandon(const Unit& unit, std::uint64_t ticket) noexcept {
  try {
    unit.home.copier->wait(ticket);
  } catch (...) {
    return;  // who gives up a transfer knows of a failure already
  }
}

}  // namespace fsdp::engine
