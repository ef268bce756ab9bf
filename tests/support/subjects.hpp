// SPDX-License-Identifier: Apache-2.0
/// The modules that parity tests shard, with their data, and the measure of parity: every gathered
/// parameter and gradient equals that of plain LibTorch in one process on the global batch.
#pragma once

#include <torch/script.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/fsdp.hpp"

namespace fsdp::test {

/// A module under test with one batch. Sample i of the batch is row i of `x` and `y`.
struct Subject {
  std::shared_ptr<torch::nn::Module> module = {};  ///< or
  std::optional<torch::jit::Module> script = {};   ///< this
  Units units = {};
  at::Tensor x = {}, y = {};
  /// Mean loss over the given rows.
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& y)> loss = {};
  /// The reference runs each rank's part by itself and averages (batch statistics are local).
  bool reference_by_part = false;

  std::vector<at::Tensor> parameters() const;
  /// Mean loss over rank `rank`'s part of the batch, or over all of it.
  at::Tensor loss_of(int rank, int size) const;
  Sharded shard(const World& world, Options options) const;
};

/// A way to make the same subject again and again: equal weights and data for an equal seed. Not
/// thread safe: LibTorch's generator is global, so ranks build theirs one after the other.
struct SubjectKind {
  std::string name;
  std::function<Subject(at::ScalarType dtype)> make;
};

/// Rows of every subject's batch: divisible by 1, 2, 3, 4, 7 and 8.
inline constexpr std::int64_t kRows = 168;

SubjectKind odd_mlp();  ///< Linear(5,7), ReLU, Linear(7,3): 66 elements
SubjectKind tiny_gpt(bool tied);
SubjectKind script_module();
SubjectKind unit_used_twice();
SubjectKind nested_units();
SubjectKind convolution();
SubjectKind lstm();
SubjectKind batch_norm();
/// One weight with that many rows and one column per entry, loss = mean over samples of x.w.
SubjectKind rows(std::vector<std::int64_t> sizes);
std::vector<SubjectKind> all_subject_kinds();

/// Makes a subject under a lock, so that ranks on threads get equal ones.
Subject make_subject(const SubjectKind& kind, at::ScalarType dtype = at::kDouble);

using OptimizerFactory =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
OptimizerFactory sgd_with_momentum();
OptimizerFactory adam();  ///< eps 1e-4: a smaller one magnifies the rounding of tiny gradients

struct Snapshot {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> first_gradients;
};

/// Plain LibTorch in one process, `steps` steps on the whole batch.
Snapshot train_reference(const SubjectKind& kind, int size, const OptimizerFactory& optimizer,
                         int steps, at::ScalarType dtype = at::kDouble);
/// The calling rank of a sharded run; every rank returns the whole tensors. @collective all ranks
Snapshot train_sharded(const SubjectKind& kind, const World& world, const Options& options,
                       const OptimizerFactory& optimizer, int steps,
                       at::ScalarType dtype = at::kDouble);

/// Gradients of all parameters, whole, on every rank. @collective all ranks
std::vector<at::Tensor> whole_gradients(const Sharded& sharded);

/// Expects both to agree: fp64 to 1e-12, fp32 to 1e-5 of each tensor's largest element.
void expect_parity(const Snapshot& actual, const Snapshot& expected);

/// Options for tests: quiet, freed weights poisoned.
Options test_options(Units units, std::int64_t align_bytes = 0, int prefetch = 1);

}  // namespace fsdp::test
