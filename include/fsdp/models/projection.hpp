// SPDX-License-Identifier: Apache-2.0
/// Linear maps in the two layouts that published weights have, each with room for a LoRA adapter.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace fsdp::models {

/// A linear map beside which a low-rank one may learn: y = W x + b + (alpha / rank) B A x. Hu et
/// al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
class AdaptableImpl : public torch::nn::Module {
 public:
  /// Adds lora_A [rank, in], drawn as PEFT draws it, and lora_B [out, rank], zero: the map is the
  /// same until training. @throws Error kInvalidArgument for a second one or a rank below 1
  void add_adapter(std::int64_t rank, double alpha);
  bool has_adapter() const { return scale_ != 0; }
  /// Whether the weight is [in, out] instead of [out, in]: PEFT's fan_in_fan_out.
  virtual bool is_transposed() const = 0;

  at::Tensor weight, bias;  ///< bias may be undefined

 protected:
  AdaptableImpl(std::int64_t in, std::int64_t out) : in_(in), out_(out) {}
  /// `y` and what the adapter adds to it.
  at::Tensor adapted(const at::Tensor& x, const at::Tensor& y);

 private:
  std::int64_t in_, out_;
  torch::nn::Linear lora_A{nullptr}, lora_B{nullptr};
  double scale_ = 0;
};

/// y = x W + b with W of shape [in, out], as GPT-2 stores its weights (Hugging Face's `Conv1D`).
class ProjectionImpl : public AdaptableImpl {
 public:
  /// Weights are drawn from a normal distribution of deviation `stddev`; biases are zero.
  ProjectionImpl(std::int64_t in, std::int64_t out, double stddev);
  at::Tensor forward(const at::Tensor& x);
  bool is_transposed() const override { return true; }
};
TORCH_MODULE(Projection);

/// y = W x + b with W of shape [out, in], as most others do; the bias is optional.
class DenseImpl : public AdaptableImpl {
 public:
  DenseImpl(std::int64_t in, std::int64_t out, bool has_bias, double stddev);
  at::Tensor forward(const at::Tensor& x);
  bool is_transposed() const override { return false; }
};
TORCH_MODULE(Dense);

}  // namespace fsdp::models
