// SPDX-License-Identifier: Apache-2.0
/// Runs of a subject with an optimizer that are saved and loaded, on ranks that are threads.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/fsdp.hpp"
#include "support/subjects.hpp"

namespace fsdp::test {

/// One rank of a sharded run with a LibTorch optimizer.
struct CheckpointedRun {
  CheckpointedRun(const SubjectKind& kind, const World& world_in, const Options& options,
                  const OptimizerFactory& make_optimizer, at::ScalarType dtype = at::kDouble)
      : world(world_in),
        subject(make_subject(kind, dtype)),
        sharded(subject.shard(world_in, options)),
        optimizer(make_optimizer(sharded.parameters())),
        state(checkpoint::state_of(*optimizer, sharded)) {}

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer->zero_grad();
      subject.loss_of(world.rank(), world.size()).backward();
      optimizer->step();
    }
  }

  void save(const std::string& directory, std::int64_t step,
            const checkpoint::RunState& run_state = {}) {
    checkpoint::Saver saver(directory, sharded, checkpoint::state_of(*optimizer, sharded));
    saver.save(step, run_state);
    saver.wait();
  }

  checkpoint::LoadReport load(const std::string& path,
                              const checkpoint::LoadOptions& options = {}) {
    return checkpoint::load(path, sharded, state.get(), options);
  }

  /// Whole parameters, on every rank. @collective all ranks
  Snapshot snapshot() const {
    Snapshot snapshot;
    const FullParameters full = sharded.full_parameters();
    for (const at::Tensor& parameter : subject.parameters()) {
      snapshot.parameters.push_back(parameter.detach().clone());
    }
    return snapshot;
  }

  World world;
  Subject subject;
  Sharded sharded;
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<checkpoint::OptimizerState> state;
};

/// The same bits in all parameters.
inline void expect_same_bits(const Snapshot& actual, const Snapshot& expected) {
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (std::size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual.parameters[i], expected.parameters[i])) << "parameter " << i;
  }
}

}  // namespace fsdp::test
