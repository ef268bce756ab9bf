// SPDX-License-Identifier: Apache-2.0
/// A collective under way over Gloo: what wait() does, whatever the payload.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/gloo_exchange.hpp"
#include "comm/timeout.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::comm::detail {

/// What a collective does besides moving its payloads, once all ranks are known to be in it. Part
/// of the collective: also where it is dropped.
struct Steps {
  std::function<void(Flight&)> before_payloads = nullptr;
  std::function<void(Flight&)> after_payloads = nullptr;
};

/// A collective in flight: first the headers, then the payloads.
class GlooWork : public Work {
 public:
  GlooWork(std::shared_ptr<GlooExchange> exchange, std::unique_ptr<Flight> flight, at::Tensor dst,
           at::Tensor src, Steps steps = {})
      : exchange_(std::move(exchange)),
        dst_(std::move(dst)),
        src_(std::move(src)),
        steps_(std::move(steps)),
        flight_(std::move(flight)) {
    exchange_->open().push_back(flight_.get());
  }

  /// A collective that was not waited for is completed within a moment, or ends the group.
  ~GlooWork() override;

  void wait() override;

 protected:
  /// Runs once all payloads are there.
  virtual void finish(const Flight&) {}

  const at::Tensor& dst() const { return dst_; }
  const at::Tensor& src() const { return src_; }

 private:
  void complete(Flight& flight);
  void await_headers(Flight& flight);
  [[noreturn]] void fail_mismatched(const Flight& flight);
  void drop() noexcept;
  void await(Flight& flight, std::vector<C10dWork>& works, std::size_t member, const char* what);
  [[noreturn]] void give_up(Flight& flight, const std::string& waited_for);
  std::string describe_silence(const Flight& flight) const;
  std::string note() const;

  std::shared_ptr<GlooExchange> exchange_;
  at::Tensor dst_;
  at::Tensor src_;
  Steps steps_;
  // After the tensors: what Gloo may still use goes first.
  std::unique_ptr<Flight> flight_;
  Clock::time_point deadline_;
  bool dropped_ = false;
};

}  // namespace fsdp::comm::detail
