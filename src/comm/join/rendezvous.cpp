// SPDX-License-Identifier: Apache-2.0
#include "comm/join/rendezvous.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "comm/failure/quiet_store.hpp"
#include "comm/join/agent_store.hpp"
#include "comm/join/claims.hpp"
#include "comm/join/job_secret.hpp"
#include "comm/join/own_store.hpp"
#include "fsdp/base/error.hpp"
#include "net/network.hpp"

namespace fsdp::comm::detail {
namespace {

// After the start, the store only carries failures; a host that is gone must not hold them up.
constexpr Milliseconds kStoreTimeout{10000};
constexpr const char* kMasterAddressKey = "fsdp/master_address";
constexpr const char* kLoopbackAddressKey = "fsdp/master_loopback_address";

bool is_loopback(const std::string& literal) {
  const net::Resolution found = net::resolve(literal, 0);
  return !found.addresses.empty() && found.addresses.front().is_loopback();
}

/// All ranks must take the same address for rank 0's, of one family: the one that a rank on another
/// host used, else the loopback address that one on this host used.
void publish_master_address(c10d::Store& store, const std::string& literal) {
  const std::vector<std::uint8_t> absent;
  store.compareSet(is_loopback(literal) ? kLoopbackAddressKey : kMasterAddressKey, absent,
                   {literal.begin(), literal.end()});
}

std::string agreed_master_address(c10d::Store& store) {
  const auto text =
      store.get(store.check({kMasterAddressKey}) ? kMasterAddressKey : kLoopbackAddressKey);
  return {text.begin(), text.end()};
}

}  // namespace

Meeting join_store(const base::RankEnvironment& environment, const std::string& transport,
                   Milliseconds timeout) {
  const std::string who =
      "rank " + std::to_string(environment.rank) + " of " + std::to_string(environment.size);
  const std::string endpoint = net::endpoint_text(environment.master_addr, environment.master_port);
  const auto deadline = Clock::now() + timeout;
  const QuietStore quiet;
  try {
    Meeting meeting;
    c10::intrusive_ptr<JobStore> served;
    if (agent_serves_store()) {
      meeting = reach_agent_store(environment, who, deadline);
    } else {
      const MeetingPlace place{environment, who, endpoint, read_job_secret(), deadline};
      if (environment.rank == 0) {
        meeting.store = served = serve_store(place);
      } else {
        meeting = reach_store(place);
      }
    }
    if (!served) {
      publish_master_address(*meeting.store, meeting.master_address);
    }
    sign_in(*meeting.store, environment, transport, endpoint, remaining(deadline));
    if (served) {
      served->close_door();
    }
    meeting.master_address = agreed_master_address(*meeting.store);
    meeting.store->setTimeout(std::min(timeout, kStoreTimeout));
    return meeting;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(ErrorCode::kPeerFailed, who, " could not meet the others at ", endpoint, ": ",
         base::first_line(error.what()), ". Rank 0 has ended, or somebody else listens there");
  }
}

}  // namespace fsdp::comm::detail
