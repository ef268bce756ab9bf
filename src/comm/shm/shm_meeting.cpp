// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shm_meeting.hpp"

#include <sstream>
#include <string>
#include <vector>

#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

constexpr char kRefusal = '!';

std::string to_text(const shm::Identity& identity, const shm::Address& address) {
  std::ostringstream text;
  text << identity.high << ' ' << identity.low << ' ' << address.process << ' '
       << address.descriptor;
  return text.str();
}

/// Every rank tells the text that `act` returns, or why it failed.
template <class Act>
std::vector<std::string> agree_on(const SetUp& set_up, const std::string& topic, Act act) {
  std::string mine;
  try {
    mine = act();
  } catch (const Error& error) {
    mine = kRefusal + error.text();
  }
  std::vector<std::string> texts = exchange_texts(set_up, topic, mine);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    FSDP_CHECK(texts[rank].empty() || texts[rank].front() != kRefusal, ErrorCode::kIo, "rank ",
               rank, " cannot join over shared memory: ", texts[rank].substr(1));
  }
  return texts;
}

}  // namespace

std::shared_ptr<shm::Group> meet_in_shared_memory(const SetUp& set_up) {
  shm::Identity identity = shm::make_identity();
  std::shared_ptr<shm::Segment> control;
  const auto made = agree_on(set_up, "shared memory made", [&]() -> std::string {
    if (set_up.rank != 0) {
      return "";
    }
    control = shm::Segment::create(identity, shm::Group::bytes(set_up.size));
    return to_text(identity, control->address());
  });
  std::shared_ptr<shm::Group> group;
  agree_on(set_up, "shared memory opened", [&]() -> std::string {
    if (set_up.rank != 0) {
      shm::Address address;
      std::istringstream(made[0]) >> identity.high >> identity.low >> address.process >>
          address.descriptor;
      control = shm::Segment::open(identity, address);
    }
    group = std::make_shared<shm::Group>(control, identity, set_up.rank, set_up.size,
                                         set_up.first_rank);
    return "";
  });
  const auto end = group->await_all_joined(Clock::now() + set_up.timeout);
  FSDP_CHECK(end.kind == shm::WaitEnd::kReady, ErrorCode::kPeerFailed, "rank ", group->job_rank(),
             " waits over shared memory for rank ", end.rank, ", which has ended");
  return group;
}

}  // namespace fsdp::comm::detail
