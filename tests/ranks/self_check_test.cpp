// SPDX-License-Identifier: Apache-2.0
/// The check of a backend whose sums are somebody else's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/gloo/gloo.hpp"
#include "fsdp/comm/c10d.hpp"
#include "support/error_of.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DoneWork : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

/// Gloo with a reduce-scatter that does something else.
class WrongBackend : public c10d::Backend {
 public:
  WrongBackend(c10::intrusive_ptr<c10d::Backend> right, double factor)
      : Backend(right->getRank(), right->getSize()), right_(std::move(right)), factor_(factor) {}

  const std::string getBackendName() const override { return "wrong"; }
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& dst, at::Tensor& src,
                                                 const c10d::AllgatherOptions& options) override {
    return right_->_allgather_base(dst, src, options);
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& dst, at::Tensor& src, const c10d::ReduceScatterOptions& options) override {
    right_->_reduce_scatter_base(dst, src, options)->wait();
    dst.mul_(factor_);
    return c10::make_intrusive<DoneWork>();
  }

 private:
  c10::intrusive_ptr<c10d::Backend> right_;
  double factor_;
};

/// What make_c10d_link says of a backend whose sums are `factor` times the right ones.
std::vector<std::string> verdicts(double factor) {
  const c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> texts(2);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      texts[static_cast<std::size_t>(rank)] = test::error_of([&] {
        const comm::GlooOptions options{
            .rank = rank, .size = 2, .timeout = std::chrono::seconds(20)};
        const auto gloo = comm::connect_gloo(store, options);
        const auto group = comm::make_c10d_link(c10::make_intrusive<WrongBackend>(gloo, factor),
                                                std::chrono::seconds(20));
        group.job->barrier({.name = "end"});
      });
    });
  }
  for (std::thread& thread : ranks) {
    thread.join();
  }
  return texts;
}

TEST(SelfCheck, Fault024_ABackendThatDoesNotSumIsRefused) {
  for (const std::string& text : verdicts(1.0)) {
    EXPECT_EQ(text, "no error");
  }
  // Values 1 and 2: a mean of 3 in place of 1.5, or one that was divided twice.
  for (const std::string& text : verdicts(2.0)) {
    EXPECT_THAT(text, AllOf(HasSubstr("[unsupported]"), HasSubstr("backend \"wrong\""),
                            HasSubstr("is 3 on rank 0, must be 1.5")));
  }
  for (const std::string& text : verdicts(0.5)) {
    EXPECT_THAT(text, HasSubstr("is 0.75 on rank 0, must be 1.5"));
  }
}

}  // namespace
}  // namespace fsdp
