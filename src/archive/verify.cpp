// SPDX-License-Identifier: Apache-2.0
#include "fsdp/archive/reader.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::archive {

std::vector<std::string> verify_checkpoint(const std::string& path) {
  std::vector<std::string> problems;
  const auto gather = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      problems.push_back(error.text());
    }
  };
  gather([&] {
    const Checkpoint checkpoint(path, SumCheck::kByCaller);
    for (const Tensor& tensor : checkpoint.index().tensors) {
      gather([&] { checkpoint.check_sum(tensor); });
    }
  });
  return problems;
}

}  // namespace fsdp::archive
