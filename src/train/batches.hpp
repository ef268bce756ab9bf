// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

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
};

Batch load(const Dataset& data, Part part, const std::vector<std::int64_t>& indices);

/// Loads the batches of the step after the one that computes, on a thread of its own.
///
/// *Thread safety*: one thread.
class Loader {
 public:
  /// `indices(first_sample)` are the rows of each micro-step of the step that begins there.
  Loader(const Dataset& data,
         std::function<std::vector<std::vector<std::int64_t>>(std::int64_t)> indices)
      : data_(data), indices_(std::move(indices)) {}
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
  std::function<std::vector<std::vector<std::int64_t>>(std::int64_t)> indices_;
  std::future<std::vector<Batch>> ahead_;
  std::int64_t ahead_sample_ = -1;
  double waited_ = 0;
};

}  // namespace fsdp::train::detail
