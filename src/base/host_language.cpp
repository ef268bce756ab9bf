// SPDX-License-Identifier: Apache-2.0
#include "base/host_language.hpp"

#include <atomic>

namespace fsdp::base {

namespace {

std::atomic<const HostLanguage*> host{nullptr};

const HostLanguage& language() {
  static constexpr HostLanguage kNone;
  const HostLanguage* set = host.load(std::memory_order_acquire);
  return set != nullptr ? *set : kNone;
}

}  // namespace

void set_host_language(const HostLanguage& language) {
  host.store(new HostLanguage(language), std::memory_order_release);  // for the process's life
}

void raise_for_host(const Error& error) {
  if (language().raise != nullptr) {
    language().raise(error);
  }
}

bool host_wants_out() { return language().wants_out != nullptr && language().wants_out(); }

OutsideHost::OutsideHost()
    : let_go_(language().let_go != nullptr ? language().let_go() : nullptr) {}

OutsideHost::~OutsideHost() {
  if (let_go_ != nullptr) {
    language().take(let_go_);
  }
}

}  // namespace fsdp::base
