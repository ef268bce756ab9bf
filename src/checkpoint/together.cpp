// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/together.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/communicator.hpp"

namespace fsdp::checkpoint::detail {

void together(const World& world, const std::string& name, const std::function<void()>& phase) {
  // The code, from 1 on, then the text.
  constexpr std::int64_t kReportBytes = 2048;
  at::Tensor own = at::zeros({kReportBytes}, at::kByte);
  char* report = static_cast<char*>(own.data_ptr());
  try {
    phase();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const ErrorCode code = known != nullptr ? known->code() : ErrorCode::kIo;
    const std::string what = known != nullptr ? known->text() : error.what();
    report[0] = static_cast<char>(static_cast<int>(code) + 1);
    std::strncpy(report + 1, what.c_str(), kReportBytes - 2);
  }
  at::Tensor all = at::empty({kReportBytes * world.size()}, at::kByte);
  world.communicator().all_gather(all, own, {.name = name})->wait();
  for (int rank = 0; rank < world.size(); ++rank) {
    const char* reported = static_cast<const char*>(all.data_ptr()) + kReportBytes * rank;
    if (*reported != '\0') {
      fail(static_cast<ErrorCode>(*reported - 1), "rank ", rank, ": ", reported + 1);
    }
  }
}

std::string broadcast_text(const World& world, const std::string& text, const std::string& name) {
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  world.communicator().broadcast(length, 0, {.name = name})->wait();
  const std::int64_t bytes = *length.const_data_ptr<std::int64_t>();
  at::Tensor buffer = at::zeros({bytes}, at::kByte);
  if (world.rank() == 0 && bytes != 0) {
    std::memcpy(buffer.data_ptr(), text.data(), text.size());
  }
  world.communicator().broadcast(buffer, 0, {.name = name})->wait();
  return {static_cast<const char*>(buffer.const_data_ptr()), static_cast<std::size_t>(bytes)};
}

}  // namespace fsdp::checkpoint::detail
