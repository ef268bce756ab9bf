// SPDX-License-Identifier: Apache-2.0
/// Where gradients land and are reduced: each parameter's gradient is copied into its unit's reduce
/// buffer as soon as autograd has it; a complete buffer is reduce-scattered into the gradient
/// shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/unit.hpp"
#include "fsdp/comm/communicator.hpp"
#include "fsdp/memory/ledger.hpp"

namespace fsdp::engine {

/// *Invariants*: reductions start and end in the same order on all ranks; at most one is in flight.
/// Gradients accumulate until the shards' grads are reset. *Thread safety*: under the engine's
/// lock.
class GradSink {
 public:
  /// `buffers` in the ring; the root has one of its own when there are other units.
  GradSink(comm::Communicator& communicator, memory::Ledger& ledger, std::vector<Unit>& units,
           int root, int buffers);
  ~GradSink();
  GradSink(const GradSink&) = delete;
  GradSink& operator=(const GradSink&) = delete;

  void open(int unit, int buffer);
  /// Copies `grad` to its place, or adds it when one came before; any layout, also sparse.
  void collect(int unit, int parameter, const at::Tensor& grad);
  /// Zeros what did not come and issues the reduce-scatter. @collective all ranks
  void start_reduce(int unit, int buffer);
  /// Ends it: the shards' grads are set, unless their backward died. @blocks
  void wait_reduce(int unit, bool keeps_gradients);

  /// Forgets all gradients, also those on their way: their collectives are void.
  void start_over();

  /// Memory in which `unit` is whole in its shards' type, to use before training: [padded_numel].
  /// The sink's own where that is large enough.
  at::Tensor spare_memory(int unit) const;

 private:
  /// What `unit` collects in when it has buffer `buffer`: [padded_numel].
  at::Tensor buffer_view(int unit, int buffer) const;

  comm::Communicator& communicator_;
  memory::Ledger& ledger_;
  std::vector<Unit>& units_;
  std::vector<at::Tensor> buffers_;
  std::vector<int> buffer_of_;  ///< by unit, -1 when it has none
  std::vector<std::unique_ptr<comm::Work>> works_;
  std::int64_t buffer_bytes_ = 0;
  std::int64_t shard_bytes_ = 0;
};

}  // namespace fsdp::engine
