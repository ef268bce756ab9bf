// SPDX-License-Identifier: Apache-2.0
/// All-reduce made of the collectives that every transport has.
///
/// NOTE [all-reduce in pieces]
/// A piece is reduced slice by slice, each into its place on the rank that owns it, and the slices
/// are gathered: what a ring moves, without a temporary of the buffer's size. Pieces bound what the
/// reduce-scatter stages. The next piece's reduce-scatter is under way while this one is gathered:
///
///   start   reduce(0) reduce(1)
///   wait    [ reduce(i) ends, gather(i) starts, reduce(i+2) starts, gather(i) ends ] for each i
///
/// Every rank starts these in the same order when all ranks wait for their works in the same order.
/// What does not divide into slices, fewer elements than there are ranks, is gathered and summed on
/// each rank, as is a buffer so small that its time is that of a message.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "comm/device/device_finish.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/reduce_slices.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm {
namespace {

/// Up to so many bytes all ranks' buffers are gathered: one message in place of two.
constexpr std::int64_t kSmallBytes = 4096;

class AllReduceWork : public Work {
 public:
  AllReduceWork(Transport& group, at::Tensor buffer, double divisor, Label label)
      : group_(group),
        buffer_(buffer.detach().view({-1})),
        divisor_(divisor),
        label_(std::move(label)) {
    const std::int64_t ranks = group.size();
    const auto element = static_cast<std::int64_t>(buffer_.element_size());
    const bool is_small = static_cast<std::int64_t>(buffer_.nbytes()) <= kSmallBytes;
    sliced_ = is_small ? 0 : buffer_.numel() / ranks * ranks;
    piece_ = std::max<std::int64_t>(1, Transport::kAllReducePieceBytes / element / ranks) * ranks;
    if (sliced_ == 0 || sliced_ < buffer_.numel()) {  // also of no elements: ranks meet
      start_rest();
    }
    for (std::size_t i = 0; i < reducing_.size(); ++i) {
      start_reducing(i);
    }
  }

  void wait() override {
    FSDP_ASSERT(!is_waited_, "an all-reduce was waited for twice");
    is_waited_ = true;
    const detail::DispatchGuard guard;
    if (gathering_rest_) {
      gathering_rest_->wait();
      sum_rest();
    }
    for (std::size_t i = 0; std::int64_t(i) * piece_ < sliced_; ++i) {
      std::unique_ptr<Work>& reducing = reducing_[i % reducing_.size()];
      reducing->wait();
      reducing.reset();
      const at::Tensor piece = piece_of(i);
      const auto gathering = group_.all_gather(piece, own_slice(piece), label_);
      start_reducing(i + reducing_.size());
      gathering->wait();
    }
  }

 private:
  at::Tensor piece_of(std::size_t index) const {
    const std::int64_t begin = static_cast<std::int64_t>(index) * piece_;
    return buffer_.narrow(0, begin, std::min(piece_, sliced_ - begin));
  }

  at::Tensor own_slice(const at::Tensor& piece) const {
    const std::int64_t numel = piece.numel() / group_.size();
    return piece.narrow(0, group_.rank() * numel, numel);
  }

  void start_reducing(std::size_t index) {
    if (static_cast<std::int64_t>(index) * piece_ < sliced_) {
      const at::Tensor piece = piece_of(index);
      reducing_[index % reducing_.size()] =
          group_.reduce_scatter(own_slice(piece), piece, {.divisor = divisor_}, label_);
    }
  }

  void start_rest() {
    const at::Tensor rest = buffer_.narrow(0, sliced_, buffer_.numel() - sliced_);
    gathered_ = at::empty({group_.size() * rest.numel()}, rest.options());
    gathering_rest_ = group_.all_gather(gathered_, rest, label_);
  }

  void sum_rest() {
    at::Tensor rest = buffer_.narrow(0, sliced_, buffer_.numel() - sliced_);
    if (!rest.is_cpu()) {
      return sum_on_device(rest);
    }
    std::vector<const void*> slices;
    slices.reserve(static_cast<std::size_t>(group_.size()));
    for (int rank = 0; rank < group_.size(); ++rank) {
      slices.push_back(gathered_.narrow(0, rank * rest.numel(), rest.numel()).const_data_ptr());
    }
    detail::reduce_slices(rest.mutable_data_ptr(), rest.scalar_type(), slices, rest.numel(),
                          rest.scalar_type(), {.divisor = divisor_});
  }

  /// The same by operators on the current stream, which the gather's wait has ordered.
  void sum_on_device(const at::Tensor& rest) {
    const bool is_narrow = rest.scalar_type() == at::kBFloat16 || rest.scalar_type() == at::kHalf;
    const auto slice = [&](int rank) {
      return gathered_.narrow(0, rank * rest.numel(), rest.numel());
    };
    at::Tensor sum = is_narrow ? slice(0).to(at::kFloat) : slice(0);
    for (int rank = 1; rank < group_.size(); ++rank) {
      sum.add_(slice(rank));
    }
    detail::finish_on_device(rest, std::move(sum), {.divisor = divisor_});
  }

  Transport& group_;
  at::Tensor buffer_;
  double divisor_;
  const Label label_;
  std::int64_t sliced_ = 0;  ///< elements from the front that go in slices
  std::int64_t piece_ = 0;   ///< elements
  at::Tensor gathered_;      ///< of the rest, before the works that use it
  std::array<std::unique_ptr<Work>, 2> reducing_;
  std::unique_ptr<Work> gathering_rest_;
  bool is_waited_ = false;
};

}  // namespace

std::unique_ptr<Work> Transport::start_all_reduce(at::Tensor buffer, double divisor,
                                                  const Label& label) {
  const detail::DispatchGuard guard;
  FSDP_CHECK(buffer.defined() && buffer.is_contiguous(), ErrorCode::kInvalidArgument,
             "all-reduce for \"", label.name, "\": the buffer must be defined and contiguous");
  detail::check_reduction(buffer.scalar_type(), {.divisor = divisor});
  return std::make_unique<AllReduceWork>(*this, std::move(buffer), divisor, label);
}

}  // namespace fsdp::comm
