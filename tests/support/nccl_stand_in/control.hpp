// SPDX-License-Identifier: Apache-2.0
/// A library with NCCL's entry points for tests, whose devices are the simulated ones and whose
/// collectives are kernels on their streams. It refuses wrong sequences, and fails or hangs in any
/// call that it is told to. FSDP_NCCL names it; its ranks are threads of one process.
///
/// As NCCL's, its collectives start when the stream reaches them, and wait there for those of the
/// other ranks for ever, unless this rank's communicator is aborted: then they end with NaN in
/// their results. Unlike NCCL's, ranks whose collectives differ learn of it: each sees an
/// asynchronous error. Sums are added up around the ring in the type that travels.
#pragma once

#include <string>
#include <vector>

namespace fsdp::test::nccl_stand_in {

/// What goes wrong, once, in the call of that name ("ncclAllGather").
struct Fault {
  enum class Kind {
    kFails,          ///< the call returns `result`
    kHangs,          ///< the call returns when the communicator is aborted, or at release()
    kHangsForEver,   ///< the call returns at release() only
    kHangsOnDevice,  ///< a collective that is never done, unless aborted
    kFailsLater,     ///< the call succeeds, and `result` is the communicator's asynchronous error
  };
  std::string call;
  Kind kind = Kind::kFails;
  int rank = -1;   ///< of the communicator; -1: any
  int skip = 0;    ///< so many calls go well before
  int result = 2;  ///< ncclSystemError
};

class Control {
 public:
  virtual void plan(Fault fault) = 0;
  /// Ends what hangs, forgets what is planned.
  virtual void release() = 0;
  /// What was called that NCCL does not allow, since the last call.
  virtual std::vector<std::string> take_violations() = 0;
  /// The names of calls since the last call, of all ranks.
  virtual std::vector<std::string> take_calls() = 0;
  /// Made, and neither destroyed nor aborted.
  virtual int live_communicators() = 0;
  /// What ncclGetVersion() says.
  virtual void set_version(int version) = 0;

 protected:
  ~Control() = default;
};

/// Of the library that FSDP_NCCL names; loads it. @throws std::runtime_error
Control& control();

}  // namespace fsdp::test::nccl_stand_in
