// SPDX-License-Identifier: Apache-2.0
/// A collective under way over Gloo: what wait() does, whatever the payload.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/gloo/gloo_exchange.hpp"
#include "comm/gloo/progress.hpp"
#include "comm/timeout.hpp"
#include "fsdp/comm/transport.hpp"

namespace fsdp::comm::detail {

class GlooWork;

/// What a collective does besides moving its payloads, once all ranks are known to be in it. Part
/// of the collective: also where it is dropped, but for `finish`.
struct Steps {
  /// On the progress thread, before anything else.
  std::function<void(GlooWork&)> inside = nullptr;
  /// Whether `inside` sends the payloads.
  bool sends_inside = false;
  /// In wait(), when all payloads are there.
  std::function<void(const Flight&)> finish = nullptr;
};

/// A collective in flight: first the headers, then the payloads.
///
/// *Thread safety*: one thread; Steps::inside may call what is marked so.
class GlooWork final : public Work {
 public:
  GlooWork(std::shared_ptr<GlooExchange> exchange, std::unique_ptr<Flight> flight, at::Tensor dst,
           at::Tensor src, Steps steps = {});

  /// A collective that was not waited for is completed within a moment, or ends the group.
  ~GlooWork() override;

  void wait() override;

  // For Steps::inside.
  GlooExchange& exchange() { return *exchange_; }
  const Fingerprint& mine() const { return flight_->mine; }
  /// Until the payload of a member of the group is there.
  void await_data(int member);
  /// A connection that is closed ends the group.
  void send(int member, const at::Tensor& data);

 private:
  void run_inside();
  void await_inside();
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
  Progress::StepPointer inside_;  ///< null without a step inside
  bool is_inside_ = false;        ///< the progress thread has the flight
  bool is_waited_ = false;
  std::atomic<Clock::time_point> deadline_{kNoDeadline};
  std::atomic<bool> dropped_ = false;
};

}  // namespace fsdp::comm::detail
