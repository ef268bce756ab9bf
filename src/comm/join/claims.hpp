// SPDX-License-Identifier: Apache-2.0
/// The roll call of a job: every rank signs in at the store, and all learn who is missing or wrong.
#pragma once

#include <string>

#include "comm/timeout.hpp"
#include "fsdp/base/rank_env.hpp"

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// Signs this process in and waits until each rank has, once, with the same WORLD_SIZE and the same
/// wish for a transport. What one rank finds wrong, all throw.
/// @throws Error kTimeout naming the missing ranks, kInvalidArgument for a rank claimed twice,
/// another WORLD_SIZE or another transport
void sign_in(c10d::Store& store, const base::RankEnvironment& environment,
             const std::string& transport, const std::string& endpoint, Milliseconds timeout);

/// For a second rank 0, which finds the port taken: signs in at the store that is there, so that
/// the first one learns of it. @throws Error kInvalidArgument, always
[[noreturn]] void refuse_second_server(c10d::Store& store, const std::string& endpoint);

}  // namespace fsdp::comm::detail
