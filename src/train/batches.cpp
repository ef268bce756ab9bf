// SPDX-License-Identifier: Apache-2.0
#include "train/batches.hpp"

#include <torch/torch.h>

#include <chrono>
#include <span>
#include <utility>

namespace fsdp::train::detail {

at::Tensor Batch::summed_loss(models::LanguageModel& model) const {
  return is_packed ? model.forward(rows)
                   : model.forward(rows.tokens, rows.targets) * static_cast<double>(counted);
}

Batch Batch::on(c10::Device device) const {
  Batch moved = *this;
  moved.rows.tokens = rows.tokens.to(device, /*non_blocking=*/true);
  moved.rows.targets = rows.targets.to(device, /*non_blocking=*/true);
  return moved;
}

Batch load(const Dataset& data, Part part, const std::vector<std::int64_t>& indices,
           c10::Device device) {
  const auto count = std::ssize(indices);
  const std::int64_t sequence = data.sequence();
  const auto type = torch::TensorOptions(torch::kInt64).pinned_memory(!device.is_cpu());
  auto documents = std::make_shared<models::Documents>(indices.size());
  Batch batch{.rows = {.tokens = torch::empty({count, sequence}, type),
                       .targets = torch::empty({count, sequence}, type),
                       .documents = documents},
              .is_packed = data.is_packed()};
  const auto row_of = [&](const at::Tensor& all, std::size_t row) {
    return std::span(all.data_ptr<std::int64_t>() + static_cast<std::int64_t>(row) * sequence,
                     static_cast<std::size_t>(sequence));
  };
  for (std::size_t row = 0; row < indices.size(); ++row) {
    batch.counted += data.read(part, indices[row], row_of(batch.rows.tokens, row),
                               row_of(batch.rows.targets, row), (*documents)[row]);
  }
  return batch;
}

Loader::~Loader() {
  if (ahead_.valid()) {
    ahead_.wait();
  }
}

std::vector<Batch> Loader::load_all(std::int64_t first_sample) const {
  std::vector<Batch> batches;
  for (const std::vector<std::int64_t>& micro_step : indices_(first_sample)) {
    batches.push_back(load(data_, Part::kTraining, micro_step, device_));
  }
  return batches;
}

std::vector<Batch> Loader::next(std::int64_t first_sample, std::int64_t next_sample) {
  const auto begin = std::chrono::steady_clock::now();
  // What was loaded for another place, before a resume, is of no use.
  auto ahead = std::move(ahead_);
  std::vector<Batch> batches;
  if (ahead.valid()) {
    batches = ahead.get();
  }
  if (ahead_sample_ != first_sample) {
    batches = load_all(first_sample);
  }
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ahead_sample_ = next_sample;
  if (next_sample >= 0) {
    ahead_ = std::async(std::launch::async, [this, next_sample] { return load_all(next_sample); });
  }
  return batches;
}

}  // namespace fsdp::train::detail
