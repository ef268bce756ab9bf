// SPDX-License-Identifier: Apache-2.0
/// Notices what a TorchScript module gets, loses or has replaced after it was sharded, by setattr()
/// or by the registering calls. See NOTE [a module that changes after it was sharded].
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::jit {
struct Module;
}

namespace fsdp::engine {

/// *Thread safety*: immutable; the module must not change meanwhile.
class ScriptWatch {
 public:
  /// Sees nothing.
  ScriptWatch() = default;
  /// `ignored`: Options::ignore, names of parameters that may change.
  ScriptWatch(const torch::jit::Module& module, std::vector<std::string> ignored);

  /// @throws Error kInvalidArgument which names what changed since. Nothing when the module is gone
  void check() const;

 private:
  struct Slot {
    std::string name;            ///< from the outermost module
    const char* kind = nullptr;  ///< "parameter", ...; null for what may be anything
    const void* is = nullptr;    ///< the tensor's or object's address
  };
  struct Node {
    const c10::ivalue::Object* object;  ///< lives while those before it are unchanged
    std::string path;
    std::vector<Slot> slots = {};
  };

  void add(const c10::ivalue::Object& object, const std::string& path);
  Slot slot_of(const c10::ivalue::Object& object, std::size_t index, const std::string& path) const;

  std::optional<c10::weak_intrusive_ptr<c10::ivalue::Object>> root_;
  std::vector<std::string> ignored_;
  std::vector<Node> nodes_;  ///< parents before children
};

}  // namespace fsdp::engine
