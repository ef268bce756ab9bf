// SPDX-License-Identifier: Apache-2.0
/// The command line that all training programs of bench/ share, ours and the peers'
/// (bench/peers/train.py), so that one harness can start any of them.
#pragma once

#include <string>

#include "fsdp/models/gpt_config.hpp"

namespace bench {

struct Arguments {
  std::string system = "fsdp";     ///< "fsdp", "plain", "traffic" or "write"
  std::string transport = "gloo";  ///< InitOptions::transport
  std::string store = "slots";     ///< "slots" or "aliased"
  fsdp::models::GPTConfig model;
  std::int64_t batch = 1;  ///< sequences a rank
  int prefetch = 1;
  int warmup = 2;
  int steps = 5;
  int memory_steps = 0;  ///< steps after the timed ones, for whoever samples memory
  std::string weights, tokens;
};

/// @throws fsdp::Error kInvalidArgument for a command line that does not parse
Arguments parse(int argc, char** argv);

}  // namespace bench
