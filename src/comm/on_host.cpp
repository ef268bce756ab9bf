// SPDX-License-Identifier: Apache-2.0
#include "comm/on_host.hpp"

#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>

namespace fsdp::comm {

at::Tensor on_host(const at::Tensor& tensor) {
  return (tensor.is_cpu() ? tensor : tensor.cpu()).contiguous();
}

std::vector<double> numbers_on_host(const std::vector<at::Tensor>& numbers) {
  std::vector<double> values(numbers.size());
  std::vector<char> is_read(numbers.size(), 0);
  for (std::size_t first = 0; first < numbers.size(); ++first) {
    if (is_read[first] != 0) {
      continue;
    }
    std::vector<at::Tensor> together;
    std::vector<std::size_t> indices;
    for (std::size_t i = first; i < numbers.size(); ++i) {
      if (numbers[i].device() == numbers[first].device()) {
        together.push_back(numbers[i].reshape({}).to(at::kDouble));
        indices.push_back(i);
        is_read[i] = 1;
      }
    }
    const at::Tensor read = on_host(at::stack(together));
    const double* from = read.const_data_ptr<double>();
    for (const std::size_t i : indices) {
      values[i] = *from++;
    }
  }
  return values;
}

void wait_for_current_stream(c10::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

}  // namespace fsdp::comm
