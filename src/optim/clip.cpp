// SPDX-License-Identifier: Apache-2.0
#include "fsdp/optim/clip.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "comm/on_host.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/job.hpp"
#include "fsdp/engine/shard_access.hpp"
#include "fsdp/optim/finite.hpp"
#include "optim/stretches.hpp"

namespace fsdp {

namespace {

/// A p-norm in the making, in fp64 whatever the type: the sum of |x|^p, or the largest |x|.
class NormSum {
 public:
  explicit NormSum(double p) : p_(p) {}

  /// What another rank or module has. Something that is not a number stays, which a maximum of
  /// numbers would lose.
  void join(double other) {
    if (!std::isinf(p_)) {
      sum_ += other;
    } else if (!std::isnan(sum_)) {
      sum_ = std::isnan(other) ? other : std::max(sum_, other);
    }
  }
  double sum() const { return sum_; }
  double norm() const {
    return std::isinf(p_) ? sum_ : p_ == 2 ? std::sqrt(sum_) : std::pow(sum_, 1 / p_);
  }

 private:
  double p_;
  double sum_ = 0;
};

/// In eight interleaved sums that a compiler turns into vectors.
template <class T, class Term>
double sum_of(const T* values, std::int64_t numel, Term term) {
  constexpr int kLanes = 8;
  std::array<double, kLanes> sums{};
  std::int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[static_cast<std::size_t>(lane)] += term(static_cast<double>(values[i + lane]));
    }
  }
  double total = 0;
  for (; i < numel; ++i) {
    total += term(static_cast<double>(values[i]));
  }
  for (double sum : sums) {
    total += sum;
  }
  return total;
}

double sum_of_squares(const at::Tensor& tensor) {
  const auto square = [](double value) { return value * value; };
  if (tensor.scalar_type() == at::kFloat) {
    return sum_of(tensor.const_data_ptr<float>(), tensor.numel(), square);
  }
  return sum_of(tensor.const_data_ptr<double>(), tensor.numel(), square);
}

/// Norms of several groups of tensors. What is on a device is read when all has been added, so that
/// the host waits for it once.
class NormSums {
 public:
  explicit NormSums(double p) : p_(p) {}

  void add(std::size_t group, const at::Tensor& tensor) {
    if (tensor.numel() == 0) {
      return;
    }
    const bool is_plain =
        tensor.is_cpu() && tensor.is_contiguous() &&
        (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
    if (p_ == 2 && is_plain) {
      parts_.push_back({.group = group, .sum = sum_of_squares(tensor)});
      return;
    }
    parts_.push_back({.group = group, .sum = std::nullopt});
    norms_.push_back(at::linalg_vector_norm(tensor, p_, {}, false, at::kDouble));
  }

  /// Of each group, joined in the order of add(). @blocks where a tensor is on a device
  std::vector<NormSum> read(std::size_t groups) const {
    std::vector<NormSum> sums(groups, NormSum(p_));
    const std::vector<double> norms = comm::numbers_on_host(norms_);
    auto norm = norms.begin();
    for (const Part& part : parts_) {
      sums[part.group].join(part.sum.has_value() ? *part.sum : sum_of_norm(*norm++));
    }
    return sums;
  }

 private:
  struct Part {
    std::size_t group;
    std::optional<double> sum;  ///< empty: the next of norms_
  };
  double sum_of_norm(double norm) const { return std::isinf(p_) ? norm : std::pow(norm, p_); }

  double p_;
  std::vector<Part> parts_;
  std::vector<at::Tensor> norms_;
};

void check_p(const char* who, double p) {
  FSDP_CHECK(p > 0, ErrorCode::kInvalidArgument, "[", who, "] p is ", p,
             ", must be positive, or infinity");
}

/// This rank's gradients, or what of them it answers for in sums over ranks; neighbours in memory
/// joined.
std::vector<at::Tensor> gradients_of(const Sharded& sharded, bool answered_only = false) {
  std::vector<at::Tensor> stretches;
  std::int64_t numel = 0;  // of the last one
  const auto finish_last = [&] {
    if (!stretches.empty()) {
      stretches.back() = optim::stretched(stretches.back(), numel);
    }
  };
  for (const NamedShard& parameter : sharded.named_parameters()) {
    at::Tensor grad = parameter.shard.grad();
    if (grad.defined() && answered_only) {
      grad = grad.narrow(0, parameter.answered_begin, parameter.answered_numel);
    }
    if (!grad.defined() || grad.numel() == 0) {
      continue;
    }
    if (!stretches.empty() && optim::follows(stretches.back(), numel, grad)) {
      numel += grad.numel();
      continue;
    }
    finish_last();
    stretches.push_back(grad);
    numel = grad.numel();
  }
  finish_last();
  return stretches;
}

/// By module, what all its ranks have, joined in the order of ranks: the same bits everywhere.
/// Ranks meet once for all modules of one world.
std::vector<double> join_ranks(const std::vector<Sharded>& shardeds,
                               const std::vector<NormSum>& own, double p) {
  std::vector<double> joined(shardeds.size());
  std::vector<char> is_joined(shardeds.size(), 0);
  for (std::size_t first = 0; first < shardeds.size(); ++first) {
    if (is_joined[first] != 0) {
      continue;
    }
    comm::Job& job = shardeds[first].world().job();
    std::vector<std::size_t> modules;
    std::vector<double> mine;
    for (std::size_t i = first; i < shardeds.size(); ++i) {
      if (&shardeds[i].world().job() == &job) {
        modules.push_back(i);
        mine.push_back(own[i].sum());
        is_joined[i] = 1;
      }
    }
    const std::vector<double> all = comm::gather_values(job, mine, "grad_norm");
    for (std::size_t i = 0; i < modules.size(); ++i) {
      NormSum sum(p);
      for (std::size_t at = i; at < all.size(); at += modules.size()) {
        sum.join(all[at]);
      }
      joined[modules[i]] = sum.sum();
    }
  }
  return joined;
}

void check_max(const char* who, const char* what, double value) {
  FSDP_CHECK(value > 0, ErrorCode::kInvalidArgument, "[", who, "] ", what, " is ", value,
             ", must be positive");
}

}  // namespace

double grad_norm(const Sharded& sharded, double p) { return grad_norm(std::vector{sharded}, p); }

double grad_norm(const std::vector<Sharded>& shardeds, double p,
                 const std::vector<at::Tensor>& whole) {
  check_p("grad_norm", p);
  const OwnShards own;
  NormSums sums(p);
  for (std::size_t i = 0; i < shardeds.size(); ++i) {
    for (const at::Tensor& grad : gradients_of(shardeds[i], /*answered_only=*/true)) {
      sums.add(i, grad);
    }
  }
  // Each whole tensor is a group: they are joined one after the other, after the modules.
  std::size_t groups = shardeds.size();
  for (const at::Tensor& parameter : whole) {
    if (parameter.grad().defined()) {
      sums.add(groups++, parameter.grad());
    }
  }
  const std::vector<NormSum> parts = sums.read(groups);
  NormSum total(p);
  for (const double joined : join_ranks(shardeds, parts, p)) {
    total.join(joined);
  }
  for (std::size_t i = shardeds.size(); i < groups; ++i) {
    total.join(parts[i].sum());
  }
  return total.norm();
}

double clip_grad_norm_(const Sharded& sharded, double max_norm, double p) {
  return clip_grad_norm_(std::vector{sharded}, max_norm, p);
}

double clip_grad_norm_(const std::vector<Sharded>& shardeds, double max_norm, double p,
                       const std::vector<at::Tensor>& whole) {
  check_max("clip_grad_norm_", "max_norm", max_norm);
  check_p("clip_grad_norm_", p);
  const double norm = grad_norm(shardeds, p, whole);
  if (!std::isfinite(norm)) {
    for (const Sharded& sharded : shardeds) {
      skip_step(sharded, norm);
    }
    return norm;
  }
  // The same small term as torch::nn::utils::clip_grad_norm_.
  const double scale = max_norm / (norm + 1e-6);
  if (scale >= 1.0) {
    return norm;
  }
  const OwnShards own;
  for (const Sharded& sharded : shardeds) {
    for (at::Tensor& grad : gradients_of(sharded)) {
      grad.mul_(scale);
    }
  }
  for (const at::Tensor& parameter : whole) {
    if (parameter.grad().defined()) {
      parameter.grad().mul_(scale);
    }
  }
  return norm;
}

void clip_grad_value_(const Sharded& sharded, double max_value) {
  check_max("clip_grad_value_", "max_value", max_value);
  const OwnShards own;
  for (at::Tensor& grad : gradients_of(sharded)) {
    grad.clamp_(-max_value, max_value);
  }
}

}  // namespace fsdp
