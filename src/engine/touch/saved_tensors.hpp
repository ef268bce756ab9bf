// SPDX-License-Identifier: Apache-2.0
/// What happens to the tensors that autograd saves for backward on this thread.
#pragma once

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace fsdp::engine {

/// Makes the hooks of one saved tensor.
class SavedTensorPolicy {
 public:
  virtual ~SavedTensorPolicy() = default;
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() = 0;
};

/// Puts a policy into force for this thread, as long as it lives; the latest one counts. Needs
/// ensure_autograd_engine(), whose engine asks for it.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(SavedTensorPolicy& policy);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  /// The policy in force, null without one.
  static SavedTensorPolicy* current();

 private:
  SavedTensorPolicy* outer_;
};

}  // namespace fsdp::engine
