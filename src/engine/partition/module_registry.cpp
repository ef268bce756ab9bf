// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/module_registry.hpp"

namespace fsdp::engine {

namespace {

struct Access : torch::nn::Module {
  static constexpr auto kParameters = &Access::parameters_;
};

using Buffers = TensorRegistry torch::nn::Module::*;
using Children = ModuleRegistry torch::nn::Module::*;

Buffers buffers_member();
Children children_member();

/// An explicit instantiation may name private members (C++20, [temp.spec] 6).
template <Buffers kBuffers, Children kChildren>
struct PrivateMembers {
  friend Buffers buffers_member() { return kBuffers; }
  friend Children children_member() { return kChildren; }
};
template struct PrivateMembers<&torch::nn::Module::buffers_, &torch::nn::Module::children_>;

}  // namespace

TensorRegistry& parameters_of(torch::nn::Module& module) { return module.*Access::kParameters; }

const TensorRegistry& buffers_of(const torch::nn::Module& module) {
  return module.*buffers_member();
}

const ModuleRegistry& children_of(const torch::nn::Module& module) {
  return module.*children_member();
}

}  // namespace fsdp::engine
