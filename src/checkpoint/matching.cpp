// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/matching.hpp"

#include <map>
#include <set>
#include <utility>

#include "base/text.hpp"
#include "format/shape.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::checkpoint::detail {
namespace {

using archive::Section;
using format::detail::shape_text;

/// Stored tensors by section and name, a tied one by each of its names.
class Stored {
 public:
  explicit Stored(const archive::Index& index) {
    for (const archive::Tensor& tensor : index.tensors) {
      by_name_[{tensor.section, tensor.name}] = &tensor;
    }
    for (const auto& [alias, name] : index.aliases) {
      by_name_[{Section::kModel, alias}] = by_name_.at({Section::kModel, name});
      // State is stored under its parameter's first name.
      for (const archive::Tensor& tensor : index.tensors) {
        if (tensor.section == Section::kOptimizer && tensor.name.starts_with(name + ".")) {
          by_name_.emplace(std::pair(Section::kOptimizer, alias + tensor.name.substr(name.size())),
                           &tensor);
        }
      }
    }
  }

  const archive::Tensor* find(const Item& item) const {
    auto found = by_name_.find({item.section, item.name});
    for (auto name = item.other_names.begin();
         found == by_name_.end() && name != item.other_names.end(); ++name) {
      found = by_name_.find({item.section, *name});
    }
    return found == by_name_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::pair<Section, std::string>, const archive::Tensor*> by_name_;
};

std::string listed(const char* title, const std::vector<std::string>& names) {
  return names.empty() ? "" : std::string("; ") + title + ": " + base::list_text(names);
}

}  // namespace

std::vector<Match> match(const std::vector<Item>& items, const archive::Index& index,
                         bool with_optimizer, LoadReport& report) {
  const Stored stored(index);
  std::vector<Match> matches;
  std::set<const archive::Tensor*> used;
  for (const Item& item : items) {
    const archive::Tensor* tensor = stored.find(item);
    if (tensor == nullptr) {
      report.missing.push_back(item.name);
      continue;
    }
    used.insert(tensor);
    if (tensor->shape != item.shape) {
      report.mismatched.push_back(item.name + ": " + tensor->dtype + " " +
                                  shape_text(tensor->shape) + " in the file, " +
                                  shape_text(item.shape) + " here");
      continue;
    }
    matches.push_back({.item = &item, .stored = tensor});
  }
  for (const archive::Tensor& tensor : index.tensors) {
    const bool counts = tensor.section == Section::kModel ||
                        (tensor.section == Section::kOptimizer && with_optimizer);
    if (counts && !used.contains(&tensor)) {
      report.unexpected.push_back(tensor.name);
    }
  }
  return matches;
}

void require_all(const LoadReport& report) {
  const std::string lists = listed("missing in the file", report.missing) +
                            listed("in the file but not here", report.unexpected) +
                            listed("of another shape", report.mismatched);
  FSDP_CHECK(lists.empty(), ErrorCode::kMismatch, "'", report.path,
             "' does not fit this module and optimizer", lists,
             report.missing.empty() ? "" : archive::hint_for_part(report.path),
             ". LoadOptions::strict = false loads what fits");
}

}  // namespace fsdp::checkpoint::detail
