// SPDX-License-Identifier: Apache-2.0
#include "engine/partition/script_watch.hpp"

#include <torch/script.h>

#include <algorithm>
#include <utility>

#include "base/name_pattern.hpp"
#include "engine/partition/module_watch.hpp"

namespace fsdp::engine {

namespace {

const void* address(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.unsafeToTensorImpl();
  }
  return value.isObject() ? &value.toObjectRef() : nullptr;
}

}  // namespace

ScriptWatch::ScriptWatch(const torch::jit::Module& module, std::vector<std::string> ignored)
    : root_(module._ivalue()), ignored_(std::move(ignored)) {
  add(*module._ivalue(), "");
}

ScriptWatch::Slot ScriptWatch::slot_of(const c10::ivalue::Object& object, std::size_t index,
                                       const std::string& path) const {
  const std::shared_ptr<c10::ClassType> type = object.type();
  const c10::IValue& value = object.slots()[index];
  Slot slot{.name = path + type->getAttributeName(index), .is = address(value)};
  if (type->getAttribute(index)->is_module()) {
    slot.kind = "module";
  } else if (type->is_parameter(index) && value.isTensor()) {
    const bool is_ignored = std::ranges::any_of(
        ignored_, [&](const std::string& pattern) { return base::matches(pattern, slot.name); });
    slot.kind = is_ignored ? nullptr : "parameter";
  } else if (type->is_buffer(index) && value.isTensor()) {
    slot.kind = "buffer";
  }
  return slot;
}

void ScriptWatch::add(const c10::ivalue::Object& object, const std::string& path) {
  const std::size_t index = nodes_.size();
  nodes_.push_back({.object = &object, .path = path});
  for (std::size_t i = 0; i < object.slots().size(); ++i) {
    nodes_[index].slots.push_back(slot_of(object, i, path));
  }
  const std::shared_ptr<c10::ClassType> type = object.type();
  for (std::size_t i = 0; i < object.slots().size(); ++i) {
    if (type->getAttribute(i)->is_module()) {
      add(object.slots()[i].toObjectRef(), path + type->getAttributeName(i) + ".");
    }
  }
}

void ScriptWatch::check() const {
  if (!root_.has_value() || root_->expired()) {
    return;
  }
  for (const Node& node : nodes_) {
    const std::vector<c10::IValue>& slots = node.object->slots();
    for (std::size_t i = 0; i < std::min(slots.size(), node.slots.size()); ++i) {
      const Slot& slot = node.slots[i];
      if (slot.kind != nullptr && slot.is != address(slots[i])) {
        refuse_change(std::string(slot.kind) + " \"" + slot.name + "\" was replaced",
                      "the one that was there is sharded and saved");
      }
    }
    for (std::size_t i = node.slots.size(); i < slots.size(); ++i) {
      const Slot slot = slot_of(*node.object, i, node.path);
      if (slot.kind != nullptr) {
        refuse_change(std::string(slot.kind) + " \"" + slot.name + "\" was registered",
                      "it is in no shard, so each rank has its own, and no checkpoint has it");
      }
    }
  }
}

}  // namespace fsdp::engine
