// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/diff.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "archive/elements.hpp"
#include "format/shape.hpp"
#include "fsdp/archive/listing.hpp"
#include "fsdp/archive/reader.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/format/safetensors.hpp"

namespace fsdp::archive {
namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 16;

using Read = std::function<void(const Tensor&, std::int64_t, std::int64_t, void*)>;

/// Either side: its tensors by name and how to read them.
struct Side {
  std::map<std::string, const Tensor*> tensors;
  Read read;
};

struct ElementDifference {
  std::int64_t count = 0;
  double largest = 0;
};

class Comparison {
 public:
  Comparison(Side left, Side right) : left_(std::move(left)), right_(std::move(right)) {}

  std::vector<std::string> lines() {
    for (const auto& [name, tensor] : left_.tensors) {
      const auto other = right_.tensors.find(name);
      if (other == right_.tensors.end()) {
        lines_.push_back("only in the first: " + name);
      } else {
        compare(name, *tensor, *other->second);
      }
    }
    for (const auto& [name, tensor] : right_.tensors) {
      if (!left_.tensors.contains(name)) {
        lines_.push_back("only in the second: " + name);
      }
    }
    return std::move(lines_);
  }

 private:
  void compare(const std::string& name, const Tensor& left, const Tensor& right) {
    using format::detail::shape_text;
    if (left.shape != right.shape || left.dtype != right.dtype) {
      lines_.push_back(name + ": " + left.dtype + " " + shape_text(left.shape) + " against " +
                       right.dtype + " " + shape_text(right.shape));
    }
    const bool is_comparable = left.shape == right.shape &&
                               (left.dtype == right.dtype || (detail::is_floating(left.dtype) &&
                                                              detail::is_floating(right.dtype)));
    if (!is_comparable) {
      return;
    }
    const ElementDifference difference = elements(left, right);
    if (difference.count > 0) {
      std::ostringstream line;
      line << name << ": " << difference.count << " of " << numel(left.shape) << " elements differ";
      if (detail::is_floating(left.dtype)) {
        line << ", by up to " << difference.largest;
      }
      lines_.push_back(line.str());
    }
  }

  ElementDifference elements(const Tensor& left, const Tensor& right) {
    const std::int64_t left_size = format::element_bytes(left.dtype);
    const std::int64_t right_size = format::element_bytes(right.dtype);
    const std::int64_t count = numel(left.shape);
    ElementDifference difference;
    for (std::int64_t done = 0; done < count; done += kChunkElements) {
      const std::int64_t part = std::min(kChunkElements, count - done);
      left_bytes_.resize(static_cast<std::size_t>(part * left_size));
      right_bytes_.resize(static_cast<std::size_t>(part * right_size));
      left_.read(left, done * left_size, part * left_size, left_bytes_.data());
      right_.read(right, done * right_size, part * right_size, right_bytes_.data());
      if (left.dtype == right.dtype && left_bytes_ == right_bytes_) {
        continue;
      }
      if (detail::is_floating(left.dtype)) {
        add_values(left.dtype, right.dtype, part, difference);
      } else {
        add_bytes(left_size, part, difference);
      }
    }
    return difference;
  }

  void add_values(const std::string& left_type, const std::string& right_type, std::int64_t count,
                  ElementDifference& difference) {
    left_values_.resize(static_cast<std::size_t>(count));
    right_values_.resize(static_cast<std::size_t>(count));
    detail::to_double(left_type, left_bytes_.data(), count, left_values_.data());
    detail::to_double(right_type, right_bytes_.data(), count, right_values_.data());
    for (std::size_t i = 0; i < left_values_.size(); ++i) {
      const double left = left_values_[i], right = right_values_[i];
      const bool same = left == right || (std::isnan(left) && std::isnan(right));
      difference.count += same ? 0 : 1;
      const double distance = std::fabs(left - right);
      if (!same && !(distance <= difference.largest)) {
        difference.largest = distance;
      }
    }
  }

  void add_bytes(std::int64_t itemsize, std::int64_t count, ElementDifference& difference) {
    for (std::int64_t i = 0; i < count; ++i) {
      difference.count +=
          std::memcmp(left_bytes_.data() + i * itemsize, right_bytes_.data() + i * itemsize,
                      static_cast<std::size_t>(itemsize)) != 0
              ? 1
              : 0;
    }
  }

  Side left_, right_;
  std::vector<std::string> lines_;
  std::vector<char> left_bytes_, right_bytes_;
  std::vector<double> left_values_, right_values_;
};

/// The checkpoint that `path` means, where it means one and not plain weights.
std::string checkpoint_at(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path place(path);
  const bool is_plain = !fs::is_directory(place, ignored) ||
                        (!fs::exists(place / kIndexName, ignored) &&
                         (fs::exists(place / "model.safetensors", ignored) ||
                          fs::exists(place / "model.safetensors.index.json", ignored)));
  return is_plain ? "" : resolve_checkpoint(path);
}

Side side_of(const WeightSource& source) {
  Side side{.tensors = {},
            .read = [&source](const Tensor& tensor, std::int64_t offset, std::int64_t bytes,
                              void* dst) { source.read(tensor, offset, bytes, dst); }};
  for (const Tensor& tensor : source.tensors()) {
    side.tensors[tensor.name] = &tensor;
  }
  return side;
}

Side side_of(const Checkpoint& checkpoint) {
  Side side{.tensors = {},
            .read = [&checkpoint](const Tensor& tensor, std::int64_t offset, std::int64_t bytes,
                                  void* dst) { checkpoint.read(tensor, offset, bytes, dst); }};
  for (const Tensor& tensor : checkpoint.index().tensors) {
    side.tensors[std::string(to_string(tensor.section)) + " " + tensor.name] = &tensor;
  }
  return side;
}

std::map<std::string, std::string> values_of(const Index& index) {
  std::map<std::string, std::string> texts = {{"step", std::to_string(index.step)}};
  for (const auto& [name, steps] : index.steps) {
    texts["steps " + name] = std::to_string(steps);
  }
  for (const auto& [alias, name] : index.aliases) {
    texts["alias " + alias] = name;
  }
  for (const auto& [section, values] : index.values) {
    for (const auto& [key, value] : values) {
      texts[section + "." + key] = to_text(value);
    }
  }
  return texts;
}

void compare_values(const Index& left, const Index& right, std::vector<std::string>& lines) {
  const auto first = values_of(left), second = values_of(right);
  for (const auto& [key, text] : first) {
    const auto other = second.find(key);
    if (other == second.end()) {
      lines.push_back("only in the first: " + key);
    } else if (other->second != text) {
      lines.push_back(key + ": " + text + " against " + other->second);
    }
  }
  for (const auto& [key, text] : second) {
    if (!first.contains(key)) {
      lines.push_back("only in the second: " + key);
    }
  }
}

}  // namespace

std::vector<std::string> diff_weights(const std::string& left, const std::string& right) {
  const std::string left_path = checkpoint_at(left), right_path = checkpoint_at(right);
  if (left_path.empty() || right_path.empty()) {
    const WeightSource first(left), second(right);
    return Comparison(side_of(first), side_of(second)).lines();
  }
  const Checkpoint first(left_path), second(right_path);
  std::vector<std::string> lines = Comparison(side_of(first), side_of(second)).lines();
  compare_values(first.index(), second.index(), lines);
  return lines;
}

}  // namespace fsdp::archive
