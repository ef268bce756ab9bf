// SPDX-License-Identifier: Apache-2.0
#include "data/mapped_file.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "fsdp/base/error.hpp"

namespace fsdp::data::detail {

/// A mapping as the handler knows it. Never freed: the handler may look at it at any time.
struct MappingGuard {
  std::atomic<bool> is_taken = true;
  std::atomic<std::uintptr_t> begin = 0, end = 0;  ///< nothing is mapped while the end is 0
  std::atomic<bool> is_cut = false;
  MappingGuard* next = nullptr;
};

namespace {

std::atomic<MappingGuard*> guards = nullptr;
struct sigaction before;
std::uintptr_t page_size = 0;

/// Puts zeros from the page at `address` on, if it is one of ours. Async-signal-safe.
bool fill(std::uintptr_t address) {
  for (MappingGuard* guard = guards.load(); guard != nullptr; guard = guard->next) {
    const std::uintptr_t end = guard->end.load();
    if (address < guard->begin.load() || address >= end) {
      continue;
    }
    const std::uintptr_t from = address / page_size * page_size;
    guard->is_cut = true;
    return ::mmap(reinterpret_cast<void*>(from), end - from, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

void handle(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool is_ours = fill(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = error;
  if (is_ours) {
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    ::sigaction(SIGBUS, &before, nullptr);  // the read happens again, and ends the process
  }
}

void install_handler() {
  static const bool is_installed = [] {
    page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &before) == 0;
  }();
  (void)is_installed;
}

MappingGuard* take_guard() {
  for (MappingGuard* guard = guards.load(); guard != nullptr; guard = guard->next) {
    if (!guard->is_taken.exchange(true)) {
      guard->is_cut = false;
      return guard;
    }
  }
  auto* made = new MappingGuard;
  made->next = guards.load();
  while (!guards.compare_exchange_weak(made->next, made)) {
  }
  return made;
}

}  // namespace

MappedFile::MappedFile(const std::string& path)
    : file_(path), size_(static_cast<std::size_t>(file_.size())) {
  if (size_ == 0) {
    return;
  }
  install_handler();
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_.descriptor(), 0);
  FSDP_CHECK(mapped != MAP_FAILED, ErrorCode::kIo, "'", path,
             "' cannot be mapped: ", std::strerror(errno));
  data_ = static_cast<const unsigned char*>(mapped);
  guard_ = take_guard();
  guard_->begin = reinterpret_cast<std::uintptr_t>(data_);
  guard_->end = reinterpret_cast<std::uintptr_t>(data_) + size_;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    guard_->end = 0;
    ::munmap(const_cast<unsigned char*>(data_), size_);
    guard_->is_taken = false;
  }
}

void MappedFile::check() const { file_.check_size(/*is_cut=*/guard_ != nullptr && guard_->is_cut); }

}  // namespace fsdp::data::detail
