// SPDX-License-Identifier: Apache-2.0
/// Runs ranks over every transport of one host: as processes over gloo and shm, and as threads.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "fsdp/comm/world.hpp"
#include "support/processes.hpp"

namespace fsdp::test {

/// `body` on every rank, with failed expectations reported for both. `name` tells several calls in
/// one test apart.
inline void on_all_transports(int ranks, double timeout_seconds,
                              const std::function<void(World)>& body,
                              const std::string& name = "") {
  ::setenv("FSDP_TIMEOUT", std::to_string(timeout_seconds).c_str(), 1);
  // The processes first: their copies of the test must not run the threads.
  for (const std::string transport : {"gloo", "shm"}) {
    SCOPED_TRACE(transport);
    const auto rank = [&](int) { body(init({.transport = transport})); };
    for (const ProcessResult& result : run_processes(ranks, name + transport, rank)) {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
  }
  const bool is_copy = std::getenv("FSDP_TEST_RANK") != nullptr;
  if (!is_copy) {
    run_threads(ranks, body);
  }
}

}  // namespace fsdp::test
