// SPDX-License-Identifier: Apache-2.0
#include "engine/executor/initial_weights.hpp"

#include "engine/touch/deferred.hpp"

namespace fsdp::engine {

void hand_over_weights(const ModuleLayout& layout, comm::Transport& world, InitialWeights initial,
                       const Gradients& gradients, Residency& residency) {
  for (int index = 0; index < layout.count(); ++index) {
    const Unit& unit = layout.at(index);
    at::Tensor whole = gradients.spare_memory(index);
    whole.zero_();
    const bool own_values = initial == InitialWeights::kCheckEqual || world.rank() == 0;
    for (int i = 0; own_values && i < unit.layout->parameters(); ++i) {
      const Parameter& parameter = unit.at(i);
      whole.narrow(0, unit.layout->offset(i), parameter.numel)
          .as_strided(parameter.sizes, parameter.strides)
          .copy_(values_of(parameter.tensor));
    }
    if (initial == InitialWeights::kBroadcast) {
      world.broadcast(whole, 0, {index, unit.name})->wait();
    }
    residency.take(index, whole);
  }
}

}  // namespace fsdp::engine
