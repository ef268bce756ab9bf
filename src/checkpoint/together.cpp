// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/together.hpp"

#include <array>
#include <span>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/job.hpp"

namespace fsdp::checkpoint::detail {

void together(const World& world, const std::string& name, const std::function<void()>& phase) {
  // The code, from 1 on, then the text.
  using Report = std::array<char, 2048>;
  Report report{};
  try {
    phase();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const Error*>(&error);
    const ErrorCode code = known != nullptr ? known->code() : ErrorCode::kIo;
    const std::string what = known != nullptr ? known->text() : error.what();
    report[0] = static_cast<char>(static_cast<int>(code) + 1);
    what.copy(report.data() + 1, report.size() - 2);
  }
  const auto reports = comm::gather_values(world.job(), report, name);
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const char* reported = reports[rank].data();
    if (*reported != '\0') {
      fail(static_cast<ErrorCode>(*reported - 1), "rank ", rank, ": ", reported + 1);
    }
  }
}

std::string broadcast_text(const World& world, const std::string& text, const std::string& name) {
  std::string shared = world.rank() == 0 ? text : "";
  shared.resize(comm::value_of_first(world.job(), text.size(), name));
  world.job().broadcast_bytes(std::as_writable_bytes(std::span(shared)), 0, {.name = name});
  return shared;
}

}  // namespace fsdp::checkpoint::detail
