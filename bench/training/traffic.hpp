// SPDX-License-Identifier: Apache-2.0
/// The collectives of a training step without the training: what the link alone costs.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "fsdp/fsdp.hpp"

namespace bench {

/// Records which collectives a step issues, then issues the same ones again, in the same order and
/// with the same bytes, two in flight, on buffers of its own.
class Traffic {
 public:
  /// For Options::observer; records while `is_recording`.
  void observe(const fsdp::trace::Event& event);
  bool is_recording = false;

  /// Makes the buffers, once the units are known.
  void prepare(const fsdp::Sharded& sharded);
  /// Replays the recorded step. @collective all ranks @blocks
  void replay();

 private:
  struct Collective {
    bool is_gather;
    int unit;
  };
  std::unique_ptr<fsdp::comm::Work> start(const Collective& collective, std::size_t buffer);

  std::vector<Collective> order_;
  std::vector<std::int64_t> padded_numel_;
  std::vector<at::Tensor> whole_, slice_;  ///< two of each
  fsdp::comm::Transport* transport_ = nullptr;
};

}  // namespace bench
