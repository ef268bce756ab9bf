// SPDX-License-Identifier: Apache-2.0
#include "comm/group_of_one.hpp"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <functional>
#include <utility>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/reduce_slices.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// Done in wait(), as with the others: until then dst holds what it held.
class OwnWork : public Work {
 public:
  explicit OwnWork(std::function<void()> act) : act_(std::move(act)) {}

  void wait() override {
    FSDP_ASSERT(act_ != nullptr, "a collective was waited for twice");
    const DispatchGuard guard;
    std::exchange(act_, nullptr)();
  }

 private:
  std::function<void()> act_;
};

/// Nothing but this rank's own bytes: the sum in rank order, and memory that all ranks see.
Traits traits_over(const Traits& parent) {
  Traits traits = parent;
  traits.waits = Waits::kHost;
  traits.sums = Sums::kRankOrder;
  traits.shares_memory = true;
  traits.can_split = true;
  return traits;
}

class GroupOfOne final : public HostTransport {
 public:
  explicit GroupOfOne(Link parent)
      : HostTransport(traits_over(parent.transport->traits())), parent_(std::move(parent)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    const DispatchGuard guard;
    check_all_gather(*this, dst, src, label);
    return std::make_unique<OwnWork>([dst = std::move(dst), src = std::move(src)] {
      void* place = dst.mutable_data_ptr();
      if (place != src.const_data_ptr() && src.nbytes() != 0) {
        std::memcpy(place, src.const_data_ptr(), src.nbytes());
      }
    });
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override {
    const DispatchGuard guard;
    check_reduce_scatter(*this, dst, src, finish, label);
    return std::make_unique<OwnWork>([dst = std::move(dst), src = std::move(src), finish] {
      const void* slice = src.const_data_ptr();
      reduce_slices(dst.mutable_data_ptr(), dst.scalar_type(), {&slice, 1}, dst.numel(),
                    src.scalar_type(), finish);
    });
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    const DispatchGuard guard;
    check_broadcast(*this, buffer, root, label);
    return std::make_unique<OwnWork>([] {});
  }

  std::unique_ptr<Work> publish(const Label&) override {
    return std::make_unique<OwnWork>([] {});
  }

  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }

  at::Tensor shared_memory(std::int64_t bytes, const Label&) override {
    const DispatchGuard guard;
    FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "shared memory of ", bytes, " bytes");
    return at::zeros({bytes}, at::TensorOptions(at::kByte));
  }

  at::Tensor buffer(std::int64_t bytes) override { return parent_.transport->buffer(bytes); }

  void announce(const Announcement&) override {}

  std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                           const std::string& label) override {
    FSDP_CHECK(ranks == std::vector<int>{0}, ErrorCode::kInvalidArgument, "split \"", label,
               "\" of a group of one rank: its only part is {0}");
    return shared_from_this();
  }

  void set_timeout(std::chrono::milliseconds timeout) override {
    parent_.job->set_timeout(timeout);
  }
  std::chrono::milliseconds timeout() const override { return parent_.job->timeout(); }
  void recover() override { parent_.job->recover(); }
  std::uint64_t generation() const override { return parent_.job->generation(); }
  void publish_failure(const std::string& text) noexcept override {
    parent_.job->publish_failure(text);
  }
  std::string first_failure() noexcept override { return parent_.job->first_failure(); }

 private:
  const Link parent_;
};

}  // namespace

std::shared_ptr<HostTransport> make_group_of_one(Link parent) {
  return std::make_shared<GroupOfOne>(std::move(parent));
}

}  // namespace fsdp::comm::detail
