// SPDX-License-Identifier: Apache-2.0
/// Random modules and random ways to train them, drawn from a seed: every rank and the reference
/// draw the same. Depth, sizes, ties, reuse, freezing, branches, units, accumulation.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"
#include "support/draw.hpp"

namespace fsdp::test {

enum class LayerKind { kLinear, kNorm, kTwoLinears, kScale };

/// One layer of a random module. `in` equals `out` where it is skipped, added or used again.
struct LayerPlan {
  LayerKind kind = LayerKind::kLinear;
  int in = 1, out = 1;
  bool has_bias = true;
  bool is_residual = false;
  bool is_branch = false;  ///< runs in even steps only
  bool is_unit = false;
  bool is_side_output = false;  ///< its result is thrown away, so that its weights get no gradient
  bool is_bias_frozen = false, is_weight_frozen = false;
  int tied_to = -1;  ///< shares the weight of that earlier layer
  int repeats = 1;   ///< runs that often in a row
};

/// How the module is sharded and trained.
struct RandomPlan {
  std::uint64_t seed = 0;
  int ranks = 1;
  std::vector<LayerPlan> layers;
  int steps = 3;
  int rows = 2;                    ///< of a rank's micro-batch
  std::vector<int> micro_batches;  ///< by step
  bool evaluates = false;          ///< between steps
  bool reads_full = false;         ///< full_parameters() between steps
  bool has_adam = false;           ///< else SGD with momentum
  bool is_low_precision = false;   ///< sharded with bfloat16 weights; the reference is float64
  int frozen_from = -1;            ///< the first layer's weight is frozen from this step on
};

RandomPlan draw_plan(std::uint64_t seed);
/// One line to print when a case fails.
std::string to_string(const RandomPlan& plan);

/// A module as planned. Not thread safe to build: LibTorch's generator is global.
class RandomNetImpl : public torch::nn::Module {
 public:
  explicit RandomNetImpl(const RandomPlan& plan);
  at::Tensor forward(at::Tensor x, int step);
  /// What a rank sees in a micro-batch; equal for equal arguments.
  at::Tensor input(int step, int micro_batch, int rank) const;
  at::Tensor loss(int step, int micro_batch, int rank);
  void freeze_for(int step);
  Units units() const;

 private:
  struct Layer {
    LayerPlan plan;
    std::function<at::Tensor(const at::Tensor&)> run;
  };
  void add_layer(int index, const LayerPlan& plan);

  RandomPlan plan_;
  std::vector<Layer> layers_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
};
TORCH_MODULE(RandomNet);

}  // namespace fsdp::test
