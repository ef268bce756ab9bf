// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_end.hpp"

#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>

#include "fsdp/base/log.hpp"
#include "net/network.hpp"

namespace fsdp::comm::detail {

namespace {

std::mutex mutex;
int living = 0;
std::terminate_handler before = nullptr;
std::set<std::uint16_t> watched;

[[noreturn]] void end() {
  std::string what;
  try {
    if (const auto error = std::current_exception()) {
      std::rethrow_exception(error);
    }
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  if (what.find("gloo/transport") != std::string::npos && mutex.try_lock()) {
    const std::string users = net::other_users_at(watched);
    mutex.unlock();
    base::log(
        base::LogLevel::kWarn,
        "Gloo ends this process while the ranks connect: whoever is connected to a port of it",
        users.empty() ? "" : " (" + users + ")",
        " has said what no rank says, or the ranks run different LibTorch versions: ", what);
  }
  if (before != nullptr) {
    before();
  }
  std::abort();
}

}  // namespace

NamedGlooEnd::NamedGlooEnd(const std::set<std::uint16_t>& ports) {
  const std::lock_guard lock(mutex);
  watched = ports;
  if (living++ == 0) {
    before = std::set_terminate(end);
  }
}

NamedGlooEnd::~NamedGlooEnd() {
  const std::lock_guard lock(mutex);
  if (--living == 0 && std::get_terminate() == end) {
    std::set_terminate(before);
  }
}

}  // namespace fsdp::comm::detail
