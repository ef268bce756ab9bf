// SPDX-License-Identifier: Apache-2.0
/// AdamW on the r-th of N parts of every weight, by the fused kernel that fsdp::optim::AdamW uses:
/// what a rank's optimizer costs without a library and without communication.
#pragma once

#include <ATen/ops/_fused_adamw.h>
#include <torch/torch.h>

#include <vector>

namespace bench {

inline constexpr double kLearningRate = 1e-4;
inline constexpr double kWeightDecay = 0.01;

class PlainAdamW {
 public:
  PlainAdamW(std::vector<at::Tensor> parameters, int rank, int ranks)
      : parameters_(std::move(parameters)), rank_(rank), ranks_(ranks) {
    torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters_) {
      parts_.push_back(part(parameter));
      first_.push_back(torch::zeros_like(parts_.back()));
      second_.push_back(torch::zeros_like(parts_.back()));
      steps_.push_back(torch::zeros({}));
    }
  }

  void step() {
    torch::NoGradGuard no_grad;
    std::vector<at::Tensor> grads;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      steps_[i] += 1;
      grads.push_back(part(parameters_[i].grad()));
    }
    at::_fused_adamw_(parts_, grads, first_, second_, {}, steps_, kLearningRate, 0.9, 0.999,
                      kWeightDecay, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

  void zero_grad() {
    for (at::Tensor& parameter : parameters_) {
      parameter.mutable_grad().reset();
    }
  }

 private:
  /// Part r of N equal ones, the last one shorter where N does not divide.
  at::Tensor part(const at::Tensor& whole) const {
    const std::int64_t each = (whole.numel() + ranks_ - 1) / ranks_;
    const std::int64_t begin = std::min(whole.numel(), rank_ * each);
    return whole.reshape({-1}).narrow(0, begin, std::min(each, whole.numel() - begin));
  }

  std::vector<at::Tensor> parameters_, parts_, first_, second_, steps_;
  int rank_, ranks_;
};

}  // namespace bench
