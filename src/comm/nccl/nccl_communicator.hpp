// SPDX-License-Identifier: Apache-2.0
/// One communicator of NCCL: the ranks of one group, each with a device of its own.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm/nccl/nccl_library.hpp"
#include "comm/timeout.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::comm::detail::nccl {

/// *Thread safety*: issue() on one thread at a time; abort(), is_aborted() and async_error() on
/// any.
class Communicator {
 public:
  /// Connects the ranks of `job`, over which they first tell each other who is here, with which
  /// NCCL and on which device, and rank 0 the identity that they meet under.
  /// @collective all ranks of `job` @blocks up to `limit`
  /// @throws Error on all ranks: kInvalidArgument when two are on one device, kUnsupported when a
  /// rank cannot, or their NCCLs differ; kTimeout when NCCL does not connect them in time, naming
  /// the ranks that did not come as far as the job knows; kPeerFailed when it fails
  static std::shared_ptr<Communicator> connect(std::shared_ptr<const Library> library, Job& job,
                                               c10::Device device, Milliseconds limit);

  /// Ends it in good order, in a limited time, unless it was aborted. Never throws.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  using Call = std::function<Result(const Library&, Handle)>;
  /// Makes the call and returns when NCCL has taken it on. `what` stands in errors.
  /// @blocks up to `limit`: NCCL may still be connecting
  /// @throws Error kTimeout, kPeerFailed when NCCL refuses or was aborted meanwhile; the
  /// communicator is of no use then
  void issue(const std::string& what, Milliseconds limit, const Call& call);

  /// Ends what is under way on the device, with any content in its results. Every later issue()
  /// throws. @blocks a second at most where issue() is inside of NCCL
  void abort() noexcept;
  bool is_aborted() const { return is_aborted_; }

  /// What NCCL says went wrong by itself; empty for nothing.
  std::string async_error();

 private:
  Communicator(std::shared_ptr<const Library> library, c10::Device device)
      : library_(std::move(library)), device_(device) {}

  Result state();
  std::string describe(Result result);
  /// @throws when aborted
  void check_alive(const std::string& what) const;
  void wait_while_in_progress(Result result, const std::string& what, Clock::time_point deadline,
                              Milliseconds limit);

  const std::shared_ptr<const Library> library_;
  const c10::Device device_;
  std::timed_mutex mutex_;  ///< held where a thread is inside of NCCL with this handle
  Handle handle_ = nullptr;
  std::atomic<bool> is_aborted_ = false;
};

}  // namespace fsdp::comm::detail::nccl
