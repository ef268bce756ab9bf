// SPDX-License-Identifier: Apache-2.0
#include "comm/join/site.hpp"

#include <cstdlib>
#include <utility>

#include "comm/join/host.hpp"

namespace fsdp::comm::detail {

Site::Site(base::RankEnvironment environment, Meeting meeting, std::string wish,
           Milliseconds timeout, std::optional<std::vector<std::string>> hosts)
    : environment_(std::move(environment)),
      meeting_(std::move(meeting)),
      wish_(std::move(wish)),
      timeout_(timeout),
      hosts_(std::move(hosts)) {}

SetUp Site::set_up() const {
  return {.store = meeting_.store, .rank = rank(), .size = size(), .timeout = timeout_};
}

Site Site::on(c10::Device device) const {
  Site site = *this;
  site.device_ = device;
  return site;
}

Site Site::wishing(std::string word) const {
  Site site = *this;
  site.wish_ = std::move(word);
  return site;
}

std::vector<std::string> Site::ask_all(const std::string& topic, const std::string& mine) const {
  return size() == 1 ? std::vector{mine} : exchange_texts(set_up(), topic, mine);
}

/// As this rank tells the others.
std::string Site::own_host() const {
  std::string host = host_identity();
  if (wish_ != "shm" && std::getenv("FSDP_HOST_ID") == nullptr &&
      environment_.local_size != environment_.size) {
    // The launcher knows of other hosts, or what it takes for hosts.
    host += " from rank " + std::to_string(environment_.rank - environment_.local_rank);
  }
  return host;
}

const std::vector<std::string>& Site::hosts() const {
  if (!hosts_) {
    hosts_ = ask_all("host", own_host());
  }
  return *hosts_;
}

}  // namespace fsdp::comm::detail
