// SPDX-License-Identifier: Apache-2.0
#include "train/evaluate.hpp"

#include <torch/torch.h>

#include <algorithm>

#include "fsdp/comm/mean.hpp"
#include "train/batches.hpp"

namespace fsdp::train::detail {

double evaluate(models::LanguageModel& model, const World& world, const Dataset& data,
                std::int64_t count, std::int64_t batch) {
  torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const std::int64_t all = data.rows(Part::kValidation);
  count = std::min(count, all);
  const std::int64_t per_round = world.size() * batch;
  double sum = 0;
  double own_count = 0;
  for (std::int64_t first = 0; first < count; first += per_round) {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int64_t number = first + world.rank() * batch + i;
      if (number < count) {
        indices.push_back(number * all / count);
      }
    }
    // A rank with nothing left still runs forward, because forward gathers weights with the others.
    const bool is_idle = indices.empty();
    if (is_idle) {
      indices.push_back(0);
    }
    const Batch loaded = load(data, Part::kValidation, indices, world.device()).on(world.device());
    const double loss = loaded.summed_loss(model).item<double>();
    if (!is_idle) {
      sum += loss;
      own_count += static_cast<double>(loaded.counted);
    }
  }
  model.train(was_training);
  return mean_over_ranks(world, own_count > 0 ? sum / own_count : 0, own_count, "evaluate").get();
}

}  // namespace fsdp::train::detail
