// SPDX-License-Identifier: Apache-2.0
#include "launch/guardian_process.hpp"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <deque>
#include <thread>

#include "launch/descendants.hpp"

namespace fsdp::launch::detail {
namespace {

constexpr Milliseconds kTick{100};
/// For processes that were sent SIGKILL.
constexpr Milliseconds kPatienceAfterKill{5000};

struct GuardedRank {
  pid_t pid = -1;
  base::Descriptor handle;  // of the process: readable once it has ended
  bool has_ended = true;
  bool was_asked_to_stop = false;
};

class GuardianProcess {
 public:
  GuardianProcess(Milliseconds grace, int channel)
      : grace_(grace), channel_(channel), ready_(::epoll_create1(EPOLL_CLOEXEC)) {
    watch(channel_, kChannel);
    queue({.kind = GuardianEvent::Kind::kReady, .pid = ::getpid()});
    flush(MSG_DONTWAIT);
  }

  void start(const std::vector<RankCommand>& commands);
  void guard();

 private:
  static constexpr std::uint64_t kChannel = ~std::uint64_t{0};

  void watch(int descriptor, std::uint64_t tag) const;
  void wait_for_news();
  void obey_orders();
  void reap(int number);
  void reap_others();
  void record(int number, int status);
  void signal_ranks(int signal);
  void stop(int signal);
  void keep_deadlines();
  void end_all();
  void queue(const GuardianEvent& event) { unsent_.push_back(event); }
  void flush(int flags);
  int find(pid_t pid) const;
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const GuardedRank& rank) { return rank.has_ended; });
  }

  const Milliseconds grace_;
  const int channel_;
  const base::Descriptor ready_;
  std::vector<GuardedRank> ranks_;
  std::deque<GuardianEvent> unsent_;
  std::optional<Clock::time_point> stop_at_, kill_at_, give_up_at_;
  bool launcher_is_gone_ = false;
};

void GuardianProcess::watch(int descriptor, std::uint64_t tag) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  ::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, descriptor, &event);
}

void GuardianProcess::start(const std::vector<RankCommand>& commands) {
  for (std::size_t number = 0; number < commands.size(); ++number) {
    GuardedRank& rank = ranks_.emplace_back();
    const StartedProcess started = start_process(commands[number]);
    if (started.error != 0) {
      queue({.kind = GuardianEvent::Kind::kNotStarted,
             .rank = static_cast<int>(number),
             .value = started.error});
      stop(SIGKILL);
      return;
    }
    rank.pid = started.pid;
    rank.has_ended = false;
    rank.handle.reset(static_cast<int>(::syscall(SYS_pidfd_open, rank.pid, 0)));
    if (rank.handle.get() >= 0) {
      watch(rank.handle.get(), number);
    }
  }
  // The launcher reads to the end of the pipes: only the ranks may hold them open.
  for (const RankCommand& command : commands) {
    for (const int descriptor : {command.output, command.error}) {
      if (descriptor > STDERR_FILENO) {
        ::close(descriptor);
      }
    }
  }
}

void GuardianProcess::guard() {
  while (!all_ended() && !launcher_is_gone_) {
    wait_for_news();
    reap_others();
    keep_deadlines();
    flush(MSG_DONTWAIT);
    if (give_up_at_ && Clock::now() >= *give_up_at_) {
      break;
    }
  }
  end_all();
  queue({.kind = GuardianEvent::Kind::kDone});
  flush(0);
}

/// Hears of it in its order; waits a tick at most.
void GuardianProcess::wait_for_news() {
  std::array<epoll_event, 64> events{};
  int count = 0;
  do {
    count = ::epoll_wait(ready_.get(), events.data(), static_cast<int>(events.size()),
                         static_cast<int>(kTick.count()));
  } while (count < 0 && errno == EINTR);  // this process was stopped, and goes on
  // The kernel lists what became ready in the order in which it did: ranks in the order of death.
  for (int i = 0; i < count; ++i) {
    const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
    if (tag == kChannel) {
      obey_orders();
    } else {
      reap(static_cast<int>(tag));
    }
  }
}

/// Some of them: whoever sends without a pause must not keep the guardian from its other work.
void GuardianProcess::obey_orders() {
  constexpr int kAtOnce = 16;
  for (int i = 0; i < kAtOnce; ++i) {
    GuardianOrder order;
    const ssize_t count = ::recv(channel_, &order, sizeof(order), MSG_DONTWAIT);
    if (count == sizeof(order)) {
      order.is_stop ? stop(order.signal) : signal_ranks(order.signal);
    } else {
      launcher_is_gone_ = count == 0 || (errno != EAGAIN && errno != EINTR);
      return;
    }
  }
}

void GuardianProcess::reap(int number) {
  GuardedRank& rank = ranks_[static_cast<std::size_t>(number)];
  int status = 0;
  if (!rank.has_ended && ::waitpid(rank.pid, &status, WNOHANG) == rank.pid) {
    record(number, status);
  }
}

/// Orphans, ranks that the kernel gave no handle for, and ranks that were stopped. The end of a
/// rank with a handle is left to wait_for_news(): what is found here comes in no order.
void GuardianProcess::reap_others() {
  constexpr int kAny = WEXITED | WSTOPPED | WNOHANG;
  for (siginfo_t news{}; ::waitid(P_ALL, 0, &news, kAny | WNOWAIT) == 0 && news.si_pid != 0;
       news = {}) {
    const pid_t pid = news.si_pid;
    const int number = find(pid);
    const bool has_handle =
        number >= 0 && ranks_[static_cast<std::size_t>(number)].handle.get() >= 0;
    if (has_handle && news.si_code != CLD_STOPPED) {
      return;
    }
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG | WUNTRACED) != pid || number < 0) {
      continue;
    }
    if (WIFSTOPPED(status)) {
      queue({.kind = GuardianEvent::Kind::kStopped,
             .rank = number,
             .pid = pid,
             .value = WSTOPSIG(status)});
    } else {
      record(number, status);
    }
  }
}

void GuardianProcess::record(int number, int status) {
  GuardedRank& rank = ranks_[static_cast<std::size_t>(number)];
  rank.has_ended = true;
  rank.handle.reset();
  queue({.kind = GuardianEvent::Kind::kEnded,
         .rank = number,
         .pid = rank.pid,
         .value = status,
         .was_asked_to_stop = rank.was_asked_to_stop});
  if (status != 0 && !stop_at_) {
    stop_at_ = Clock::now() + kHold;
  }
}

void GuardianProcess::signal_ranks(int signal) {
  for (const GuardedRank& rank : ranks_) {
    // The rank may have left its group.
    if (!rank.has_ended && (::kill(-rank.pid, signal) != 0 || signal == SIGKILL)) {
      ::kill(rank.pid, signal);
    }
  }
}

void GuardianProcess::stop(int signal) {
  for (GuardedRank& rank : ranks_) {
    rank.was_asked_to_stop = true;
  }
  signal_ranks(signal);
  signal_ranks(SIGCONT);  // a stopped rank could not answer
  stop_at_ = stop_at_.value_or(Clock::now());
  if (signal == SIGKILL) {
    kill_at_ = Clock::time_point::max();
    give_up_at_ = give_up_at_.value_or(Clock::now() + kPatienceAfterKill);
  } else if (!kill_at_) {
    kill_at_ = Clock::now() + grace_;
  }
}

void GuardianProcess::keep_deadlines() {
  const auto now = Clock::now();
  if (!kill_at_ && stop_at_ && now >= *stop_at_) {
    stop(SIGTERM);
  } else if (kill_at_ && now >= *kill_at_) {
    stop(SIGKILL);
  }
}

/// Whatever still runs below this process ends here.
void GuardianProcess::end_all() {
  signal_ranks(SIGKILL);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    // By handle first, so that their ends are still reported.
    for (const auto limit = Clock::now() + kTick; !ranks_[i].has_ended && Clock::now() < limit;) {
      reap(static_cast<int>(i));
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }
  for (const pid_t pid : end_descendants({}, kPatienceAfterKill)) {
    queue({.kind = GuardianEvent::Kind::kLeftOver, .rank = find(pid), .pid = pid});
  }
}

/// A launcher that does not read must not hold up the guardian, until the end.
void GuardianProcess::flush(int flags) {
  while (!unsent_.empty()) {
    const ssize_t count =
        ::send(channel_, &unsent_.front(), sizeof(GuardianEvent), MSG_NOSIGNAL | flags);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return;
    }
    unsent_.pop_front();
  }
}

int GuardianProcess::find(pid_t pid) const {
  const auto place = std::find_if(ranks_.begin(), ranks_.end(), [pid](const GuardedRank& rank) {
    return rank.pid == pid && !rank.has_ended;
  });
  return place == ranks_.end() ? -1 : static_cast<int>(place - ranks_.begin());
}

/// Out of reach of whatever is sent to the launcher's group or session.
void leave_the_launcher() {
  ::setsid();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_NAME, "fsdp-second");
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2}) {
    ::signal(signal, SIG_IGN);
  }
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Waits for the guardian, and ends what one that was killed leaves behind.
[[noreturn]] void keep_watch(pid_t guardian) {
  // The pipes and the channel are the guardian's.
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  int status = 0;
  while (::waitpid(guardian, &status, 0) < 0 && errno == EINTR) {
  }
  end_descendants({}, kPatienceAfterKill);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/// Puts a second guard above this process. Where the system refuses a process, there is one guard.
void split_off_second() {
  const pid_t guardian = ::fork();
  if (guardian > 0) {
    keep_watch(guardian);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_NAME, "fsdp-guardian");
}

}  // namespace

void run_guardian(const std::vector<RankCommand>& commands, Milliseconds grace, int channel) {
  try {
    leave_the_launcher();
    split_off_second();
    GuardianProcess guardian(grace, channel);
    guardian.start(commands);
    guardian.guard();
  } catch (...) {
    // Out of memory, say: the launcher sees the channel close, the kernel ends the ranks.
    ::_exit(1);
  }
  ::_exit(0);
}

}  // namespace fsdp::launch::detail
