// SPDX-License-Identifier: Apache-2.0
#include "engine/grad_sink.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "fsdp/base/error.hpp"

namespace fsdp::engine {

GradSink::GradSink(comm::Communicator& communicator, memory::Ledger& ledger,
                   std::vector<Unit>& units, int root, int buffers)
    : communicator_(communicator),
      ledger_(ledger),
      units_(units),
      buffer_of_(units.size(), -1),
      works_(units.size()) {
  const c10::Device device = units.front().device;
  const auto allocate = [&](std::int64_t bytes) {
    // In memory that peers read in place, where there is such: reducing then copies nothing.
    buffers_.push_back(device.is_cpu()
                           ? communicator_.buffer(bytes)
                           : at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
    buffer_bytes_ += bytes;
  };
  const bool root_has_own = root >= 0 && units.size() > 1;
  for (int buffer = 0; buffer < buffers; ++buffer) {
    allocate(largest_of(units, &Unit::reduced_bytes, root_has_own ? root : -1));
  }
  if (root_has_own) {
    allocate(units[static_cast<std::size_t>(root)].reduced_bytes());
  }
  ledger_.add(memory::Kind::kReduceBuffers, buffer_bytes_);
  for (Unit& unit : units) {
    unit.flat_grad_shard =
        at::zeros({unit.layout->shard_numel()}, at::TensorOptions(unit.dtype).device(unit.device));
    shard_bytes_ += unit.shard_bytes();
  }
  ledger_.add(memory::Kind::kGradShards, shard_bytes_);
}

GradSink::~GradSink() {
  works_.clear();
  ledger_.remove(memory::Kind::kReduceBuffers, buffer_bytes_);
  ledger_.remove(memory::Kind::kGradShards, shard_bytes_);
}

at::Tensor GradSink::buffer_view(int unit, int buffer) const {
  const Unit& of = units_[static_cast<std::size_t>(unit)];
  const at::Tensor& bytes = buffers_[static_cast<std::size_t>(buffer)];
  FSDP_ASSERT(bytes.numel() >= of.reduced_bytes(), "reduce buffer ", buffer, " is too small");
  return at::from_blob(bytes.data_ptr(), {of.layout->padded_numel()},
                       at::TensorOptions(of.reduce_dtype).device(of.device));
}

at::Tensor GradSink::spare_memory(int unit) const {
  const Unit& of = units_[static_cast<std::size_t>(unit)];
  const at::TensorOptions options = at::TensorOptions(of.dtype).device(of.device);
  for (const at::Tensor& buffer : buffers_) {
    if (buffer.numel() >= of.whole_bytes()) {
      return at::from_blob(buffer.data_ptr(), {of.layout->padded_numel()}, options);
    }
  }
  return at::empty({of.layout->padded_numel()}, options);
}

void GradSink::open(int unit, int buffer) {
  buffer_of_[static_cast<std::size_t>(unit)] = buffer;
  for (Parameter& parameter : units_[static_cast<std::size_t>(unit)].parameters) {
    parameter.fired = 0;
  }
}

void GradSink::collect(int unit, int parameter, const at::Tensor& grad) {
  Unit& of = units_[static_cast<std::size_t>(unit)];
  Parameter& which = of.parameters[static_cast<std::size_t>(parameter)];
  const at::Tensor place = buffer_view(unit, buffer_of_[static_cast<std::size_t>(unit)])
                               .narrow(0, of.layout->offset(parameter), which.numel)
                               .as_strided(which.sizes, which.strides);
  const at::Tensor source = grad.is_sparse() ? grad.to_dense() : grad;
  if (which.fired == 0) {
    place.copy_(source);
  } else {
    place.add_(source);
  }
  ++which.fired;
}

void GradSink::start_reduce(int unit, int buffer) {
  Unit& of = units_[static_cast<std::size_t>(unit)];
  at::Tensor flat = buffer_view(unit, buffer);
  bool has_grad = false;
  for (int i = 0; i < of.layout->parameters(); ++i) {
    const Parameter& parameter = of.parameters[static_cast<std::size_t>(i)];
    if (parameter.fired == 0 && parameter.numel > 0) {
      flat.narrow(0, of.layout->offset(i), parameter.numel).zero_();
    }
    has_grad = has_grad || parameter.shard.grad().defined();
  }
  const std::int64_t padding = of.layout->padded_numel() - of.layout->total_numel();
  if (padding > 0) {
    flat.narrow(0, of.layout->total_numel(), padding).zero_();
  }
  if (has_grad) {
    // Accumulation, parameter by parameter: a grad that was reset starts from zero, one that the
    // user replaced is taken over.
    for (Parameter& parameter : of.parameters) {
      const at::Tensor& grad = parameter.shard.grad();
      if (!grad.defined()) {
        parameter.grad_shard.zero_();
      } else if (!grad.is_same(parameter.grad_shard)) {
        parameter.grad_shard.copy_(grad);
        parameter.shard.mutable_grad().reset();
      }
    }
  }
  works_[static_cast<std::size_t>(unit)] = communicator_.reduce_scatter(
      of.flat_grad_shard, flat,
      {.divisor = static_cast<double>(communicator_.size()), .accumulate = has_grad},
      {unit, of.name});
}

void GradSink::wait_reduce(int unit, bool keeps_gradients) {
  auto work = std::exchange(works_[static_cast<std::size_t>(unit)], nullptr);
  work->wait();
  buffer_of_[static_cast<std::size_t>(unit)] = -1;
  for (Parameter& parameter : units_[static_cast<std::size_t>(unit)].parameters) {
    if (keeps_gradients && parameter.tensor.requires_grad() && !parameter.shard.grad().defined()) {
      parameter.shard.mutable_grad() = parameter.grad_shard;
    }
  }
}

void GradSink::start_over() {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    works_[unit].reset();
    buffer_of_[unit] = -1;
    for (Parameter& parameter : units_[unit].parameters) {
      parameter.fired = 0;
      parameter.shard.mutable_grad().reset();
    }
  }
}

}  // namespace fsdp::engine
