// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <future>
#include <vector>

#include "fsdp/models/language_model.hpp"
#include "train/dataset.hpp"

namespace fsdp::train::detail {

/// Tokens and, at the same place, the token that follows: int64 [rows, sequence] each; and what
/// lies side by side in the rows.
struct Batch {
  models::PackedBatch rows;
  bool is_packed = false;    ///< rows hold several documents, or targets that do not count
  std::int64_t counted = 0;  ///< targets that something is learnt from

  /// The mean loss in nats of the targets that count, a scalar, times `share` of them.
  at::Tensor summed_loss(models::LanguageModel& model) const;
  /// The same with its rows on `device`, in the order of the current stream there: from pinned
  /// memory the host goes on while they are copied.
  Batch on(c10::Device device) const;
};

/// In the host's memory, pinned where `device`, for which it is meant, is another.
Batch load(const Dataset& data, Part part, const std::vector<std::int64_t>& indices,
           c10::Device device);

/// Loads the batches of the step after the one that computes, on a thread of its own.
///
/// *Thread safety*: one thread.
class Loader {
 public:
  /// `indices(first_sample)` are the rows of each micro-step of the step that begins there;
  /// `device` is what load() takes.
  Loader(const Dataset& data, c10::Device device,
         std::function<std::vector<std::vector<std::int64_t>>(std::int64_t)> indices)
      : data_(data), device_(device), indices_(std::move(indices)) {}
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The batches of the step that begins with `first_sample`, those of the step at `next_sample`
  /// being loaded from now on; below 0: none follows. @throws what reading them threw
  std::vector<Batch> next(std::int64_t first_sample, std::int64_t next_sample);
  /// Seconds that next() has waited for, in all.
  double waited() const { return waited_; }

 private:
  std::vector<Batch> load_all(std::int64_t first_sample) const;

  const Dataset& data_;
  c10::Device device_;
  std::function<std::vector<std::vector<std::int64_t>>(std::int64_t)> indices_;
  std::future<std::vector<Batch>> ahead_;
  std::int64_t ahead_sample_ = -1;
  double waited_ = 0;
};

}  // namespace fsdp::train::detail
