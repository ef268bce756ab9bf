// SPDX-License-Identifier: Apache-2.0
/// Connects the ranks with each other, whoever else connects meanwhile.
///
/// NOTE [strangers among the pairs]
/// Gloo listens while its pairs connect, and gives a seat to the first who says its number, which
/// is small and known. So each pair proves afterwards, to each other, that both know a secret of
/// this job, as the job's store does (net/store_wire.hpp). Ranks then tell each other in the store
/// how it went. If one of them has met a stranger, or nobody in time, all tear down what they have
/// and try again, at other ports. Once all are connected, Gloo's sockets answer nobody.
///
/// On one host the kernel knows whose a connection is. That is told, and decides nothing: who
/// merely knocks has no seat, and a rank that gave up for him could be held up by knocking. What
/// Gloo reads before the proof is a seat's number and messages, whose sizes it compares with what
/// this rank waits for, 32 bytes; it ends the process for others, see gloo_end.hpp.
#include <sys/random.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/sha256.hpp"
#include "base/text.hpp"
#include "comm/failure/broken_pipe.hpp"
#include "comm/failure/quiet_store.hpp"
#include "comm/gloo/gloo.hpp"
#include "comm/gloo/gloo_end.hpp"
#include "comm/gloo/gloo_exchange.hpp"
#include "comm/gloo/gloo_threads.hpp"
#include "comm/join/job_secret.hpp"
#include "comm/join/regroup.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"
#include "net/interface_choice.hpp"
#include "net/listeners.hpp"
#include "net/network.hpp"

namespace fsdp::comm {
namespace {

using detail::Clock;
using detail::Milliseconds;
using Store = c10::intrusive_ptr<c10d::Store>;
using Backend = c10::intrusive_ptr<c10d::Backend>;
using base::Digest;

std::string random_text() {
  std::string bytes(32, '\0');
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    throw std::runtime_error("the system gives no random bytes");
  }
  return bytes;
}

/// The same on all ranks of the job, and known to nobody who cannot read its store or does not know
/// its secret.
Digest pair_secret(c10d::Store& store) {
  const std::string proposed = random_text();
  const auto agreed = store.compareSet("pair_secret", std::vector<std::uint8_t>(),
                                       std::vector<std::uint8_t>(proposed.begin(), proposed.end()));
  return base::hmac_sha256(detail::read_job_secret(), std::string(agreed.begin(), agreed.end()));
}

/// Gives `gloo` its devices. @returns the sockets on which they listen
std::set<int> add_devices(c10d::ProcessGroupGloo::Options& gloo, const GlooOptions& options) {
  const auto choices = net::choose_interfaces(options.master_addr);
  // Other threads may be other ranks, whose sockets are not ours.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const std::set<int> before = net::listening_sockets();
  for (const net::InterfaceChoice& choice : choices) {
    base::log(base::LogLevel::kDebug, "rank ", options.rank, " listens on ", choice.address, " (",
              choice.interface, "), from ", choice.reason);
    gloo.devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(choice.address));
  }
  std::set<int> sockets = net::listening_sockets();
  std::erase_if(sockets, [&before](int socket) { return before.contains(socket); });
  return sockets;
}

/// One message to each peer and one from each.
class Round {
 public:
  Round(c10d::Backend& backend, int tag) : backend_(backend), tag_(tag) {}

  void post(int peer, std::string_view bytes) {
    std::vector<at::Tensor> sent{at::empty({kBytes}, at::kByte)};
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(sent[0].mutable_data_ptr()));
    received_.push_back(at::empty({kBytes}, at::kByte));
    std::vector<at::Tensor> received{received_.back()};
    works_.push_back(backend_.recv(received, peer, tag_));
    works_.push_back(backend_.send(sent, peer, tag_));
  }
  /// In the order of post().
  std::vector<std::string> wait(Clock::time_point deadline) {
    for (const auto& work : works_) {
      work->wait(detail::remaining(deadline));
    }
    std::vector<std::string> texts;
    for (const at::Tensor& bytes : received_) {
      texts.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), kBytes);
    }
    return texts;
  }

 private:
  static constexpr std::int64_t kBytes = 32;
  c10d::Backend& backend_;
  const int tag_;
  std::vector<at::Tensor> received_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

Digest prove(const Digest& secret, int from, int to, const std::string& of_prover,
             const std::string& of_verifier) {
  return base::hmac_sha256(
      base::view_of(secret),
      "pair " + std::to_string(from) + " " + std::to_string(to) + " " + of_prover + of_verifier);
}

/// Throws when a peer is none.
void prove_pairs(c10d::Backend& backend, const Digest& secret, Clock::time_point deadline) {
  constexpr int kRandomTag = 1;
  constexpr int kProofTag = 2;
  const int rank = backend.getRank();
  std::vector<int> peers;
  for (int peer = 0; peer < backend.getSize(); ++peer) {
    if (peer != rank) {
      peers.push_back(peer);
    }
  }
  std::vector<std::string> mine;
  Round random(backend, kRandomTag);
  for (const int peer : peers) {
    random.post(peer, mine.emplace_back(random_text()));
  }
  const std::vector<std::string> theirs = random.wait(deadline);
  Round proofs(backend, kProofTag);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    proofs.post(peers[i], base::view_of(prove(secret, rank, peers[i], mine[i], theirs[i])));
  }
  const std::vector<std::string> proved = proofs.wait(deadline);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const Digest expected = prove(secret, peers[i], rank, theirs[i], mine[i]);
    if (!base::are_equal(base::view_of(expected), proved[i])) {
      throw std::runtime_error("whoever has connected as rank " + std::to_string(peers[i]) +
                               " does not know the job's secret");
    }
  }
}

/// Gloo's connections, and the sockets at which others may still knock.
struct Connected {
  Backend backend;
  std::set<int> doors;
};

Connected connect_once(const Store& store, const GlooOptions& options, const Digest& secret,
                       Milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  auto gloo = c10d::ProcessGroupGloo::Options::create(limit);
  Connected connected;
  connected.doors = add_devices(*gloo, options);
  std::set<std::uint16_t> ports;
  for (const int door : connected.doors) {
    ports.insert(net::port_of(door));
  }
  const detail::NamedGlooEnd named_end(ports);
  try {
    connected.backend =
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.size, gloo);
    prove_pairs(*connected.backend, secret, deadline);
  } catch (const std::exception& error) {
    const std::string users = net::other_users_at(ports);
    if (users.empty()) {
      throw;
    }
    throw std::runtime_error(detail::cause_of(error) + " (others are connected here: " + users +
                             ")");
  }
  return connected;
}

/// What each rank says of its attempt, empty for one that is connected; nothing of a rank that says
/// nothing before the deadline.
std::vector<std::optional<std::string>> tell(c10d::Store& store, const GlooOptions& options,
                                             const std::string& mine, Clock::time_point deadline) {
  constexpr Milliseconds kPause{5};
  const auto key = [](int rank) { return "outcome/" + std::to_string(rank); };
  store.set(key(options.rank), "x" + mine);
  std::vector<std::optional<std::string>> words;
  for (int rank = 0; rank < options.size; ++rank) {
    bool is_there = store.check({key(rank)});
    for (; !is_there && Clock::now() < deadline; is_there = store.check({key(rank)})) {
      std::this_thread::sleep_for(kPause);
    }
    if (!is_there) {
      words.push_back(std::nullopt);
      continue;
    }
    const auto word = store.get(key(rank));
    words.push_back(std::string(word.begin() + 1, word.end()));
  }
  return words;
}

}  // namespace

Backend connect_gloo(const Store& store, const GlooOptions& options) {
  constexpr int kAttempts = 4;
  // For Gloo's threads.
  const detail::NoBrokenPipe guard;
  // Gloo ends the process when it has no descriptor for one who connects, a stranger too.
  net::raise_open_files();
  const detail::QuietStore quiet;
  const auto deadline = Clock::now() + options.timeout;
  std::string failure;
  try {
    const Digest secret = pair_secret(*store);
    Milliseconds limit = options.attempt;
    for (int attempt = 1; attempt <= kAttempts; ++attempt, limit *= 2) {
      limit = attempt == kAttempts ? detail::remaining(deadline)
                                   : std::min(limit, detail::remaining(deadline));
      const auto own =
          c10::make_intrusive<c10d::PrefixStore>("attempt/" + std::to_string(attempt), store);
      Connected connected;
      failure.clear();
      try {
        connected = connect_once(own, options, secret, limit);
      } catch (const Error&) {
        throw;
      } catch (const std::exception& error) {
        failure = detail::cause_of(error);
      }
      // Who is late may be so for long; of one whose connection was closed, a word comes soon.
      const auto words =
          tell(*own, options, failure,
               failure.empty() ? deadline : std::min(deadline, Clock::now() + options.attempt));
      std::string cause;
      for (std::size_t rank = 0; rank < words.size(); ++rank) {
        if (!words[rank] || !words[rank]->empty()) {
          base::append_to_list(
              cause, "rank " + std::to_string(rank) + ": " + words[rank].value_or("says nothing"));
        }
      }
      if (cause.empty()) {
        connected.backend->setTimeout(options.timeout);
        detail::lower_priority_of_gloo_threads();
        std::ranges::for_each(connected.doors, net::admit_nobody);
        return connected.backend;
      }
      failure = failure.empty() ? cause : failure;
      if (std::ranges::any_of(words, [](const auto& word) { return !word; }) ||
          Clock::now() >= deadline) {
        break;
      }
      base::log(base::LogLevel::kInfo, "rank ", options.rank, ": not all ranks are connected (",
                cause, "), again");
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    failure = detail::cause_of(error);
  }
  detail::fail_to_connect(store, options.rank, options.size, failure);
}

}  // namespace fsdp::comm
