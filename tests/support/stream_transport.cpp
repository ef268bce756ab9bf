// SPDX-License-Identifier: Apache-2.0
#include "support/stream_transport.hpp"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/reduce_slices.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/comm/transport.hpp"
#include "support/sim/launch.hpp"

namespace fsdp::test {

namespace {

using comm::Label;
using comm::Work;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = std::chrono::seconds(20);
/// How often a kernel that waits for its peers looks whether they have failed.
constexpr auto kPoll = std::chrono::milliseconds(5);

/// Where the kernels of a group's ranks meet.
class Meetings {
 public:
  using Sources = std::vector<const void*>;  ///< by rank

  explicit Meetings(int size) : size_(size) {}

  /// Waits until all ranks are in the collective, calls `move`, and waits until all have.
  template <class Move>
  void meet(comm::Job& job, std::uint64_t sequence, int rank, const void* source,
            const std::string& name, Move move) {
    const Key key{job.generation(), sequence};
    const std::shared_ptr<Meeting> meeting = post(key, rank, source, name);
    wait(job, key, *meeting, [&] { return meeting->posted == size_; });
    move(meeting->sources);
    const std::lock_guard lock(mutex_);
    if (++meeting->done == size_) {
      meetings_.erase(key);
    }
    changed_.notify_all();
  }
  /// Until no peer reads this rank's source any more.
  void part(comm::Job& job, std::uint64_t sequence) {
    const Key key{job.generation(), sequence};
    std::unique_lock lock(mutex_);
    const auto found = meetings_.find(key);
    if (found != meetings_.end()) {
      const std::shared_ptr<Meeting> meeting = found->second;
      lock.unlock();
      wait(job, key, *meeting, [&] { return meeting->done == size_; });
    }
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;  ///< generation and number
  struct Meeting {
    Sources sources;
    std::string name;
    std::string mismatch = {};
    int posted = 0, done = 0;
  };

  std::shared_ptr<Meeting> post(const Key& key, int rank, const void* source,
                                const std::string& name) {
    const std::lock_guard lock(mutex_);
    auto& meeting = meetings_[key];
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>();
      meeting->sources.resize(static_cast<std::size_t>(size_));
      meeting->name = name;
    }
    if (meeting->name != name) {
      meeting->mismatch = "ranks meet in " + meeting->name + " and in " + name;
    }
    meeting->sources[static_cast<std::size_t>(rank)] = source;
    ++meeting->posted;
    changed_.notify_all();
    return meeting;
  }

  template <class Ready>
  void wait(comm::Job& job, const Key& key, const Meeting& meeting, Ready ready) {
    const auto deadline = Clock::now() + kTimeout;
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kPoll, [&] { return ready() || !meeting.mismatch.empty(); })) {
      lock.unlock();
      const std::string failure = job.first_failure();
      FSDP_CHECK(failure.empty(), ErrorCode::kPeerFailed, meeting.name, ": ", failure);
      FSDP_CHECK(job.generation() == key.first, ErrorCode::kPeerFailed, meeting.name,
                 ": the group has recovered since");
      FSDP_CHECK(Clock::now() < deadline, ErrorCode::kTimeout, meeting.name,
                 ": not all ranks came");
      lock.lock();
    }
    FSDP_CHECK(meeting.mismatch.empty(), ErrorCode::kMismatch, meeting.mismatch);
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::shared_ptr<Meeting>> meetings_;
};

/// One object for all ranks of a group, which are threads of one process. @collective
std::shared_ptr<Meetings> share_meetings(comm::Job& job) {
  auto own = job.rank() == 0 ? std::make_shared<Meetings>(job.size()) : nullptr;
  auto* address = comm::value_of_first(job, &own, "stream transport");
  auto shared = *address;
  job.barrier({.name = "stream transport"});
  return shared;
}

/// See NOTE [order of a collective on streams].
class StreamWork : public Work {
 public:
  StreamWork(c10::Device device, const c10::Stream& stream, StreamFault fault,
             std::vector<at::Tensor> used)
      : guard_(device.type()),
        device_(device),
        fault_(fault),
        used_(std::move(used)),
        done_(device.type()) {
    done_.record(stream);
  }
  /// Its memory may go back to the stream that is current now.
  ~StreamWork() override { order(); }
  void wait() override { order(); }

 private:
  void order() {
    if (fault_ != StreamFault::kNoOutputEvent) {
      guard_.getStream(device_).wait(done_);
    }
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Device device_;
  StreamFault fault_;
  std::vector<at::Tensor> used_;
  c10::Event done_;
};

class StreamTransport : public comm::Transport {
 public:
  StreamTransport(comm::Link host, c10::Device device, StreamFault fault)
      : host_(std::move(host)),
        meetings_(share_meetings(*host_.job)),
        device_(device),
        fault_(fault),
        traits_{.name = "stream",
                .waits = comm::Waits::kStream,
                .can_split = host_.transport->traits().can_split,
                .can_recover = host_.transport->traits().can_recover},
        guard_(device.type()),
        gathers_(guard_.getNewStream(device)),
        reductions_(guard_.getNewStream(device)) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const comm::Traits& traits() const override { return traits_; }

  std::optional<std::string> refuses(c10::Device device) const override {
    if (device.is_cpu() || device == device_) {
      return std::nullopt;
    }
    return "transport \"stream\" of this rank moves tensors of " + device_.str() +
           " and of the CPU";
  }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    if (src.defined() && src.is_cpu()) {
      return host_.transport->all_gather(std::move(dst), std::move(src), label);
    }
    comm::detail::check_all_gather(*this, dst, src, label);
    auto* to = static_cast<char*>(kernel_view(dst));
    const auto move = [to, bytes = src.nbytes()](const Meetings::Sources& sources) {
      for (std::size_t rank = 0; rank < sources.size(); ++rank) {
        if (bytes > 0 && to + rank * bytes != sources[rank]) {
          std::memcpy(to + rank * bytes, sources[rank], bytes);
        }
      }
    };
    return enqueue(comm::Operation::kAllGather, gathers_, src, dst, label, move);
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, comm::Finish finish,
                                       const Label& label) override {
    if (src.defined() && src.is_cpu()) {
      return host_.transport->reduce_scatter(std::move(dst), std::move(src), finish, label);
    }
    comm::detail::check_reduce_scatter(*this, dst, src, finish, label);
    const std::size_t offset =
        src.nbytes() / static_cast<std::size_t>(size()) * static_cast<std::size_t>(rank());
    const auto move = [to = kernel_view(dst), offset, finish, from = src.scalar_type(),
                       type = dst.scalar_type(),
                       numel = dst.numel()](const Meetings::Sources& sources) {
      std::vector<const void*> slices;
      for (const void* source : sources) {
        slices.push_back(static_cast<const char*>(source) + offset);
      }
      if (numel > 0) {
        comm::detail::reduce_slices(to, type, slices, numel, from, finish);
      }
    };
    return enqueue(comm::Operation::kReduceScatter, reductions_, src, dst, label, move);
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    if (buffer.defined() && buffer.is_cpu()) {
      return host_.transport->broadcast(std::move(buffer), root, label);
    }
    comm::detail::check_broadcast(*this, buffer, root, label);
    const auto move = [to = kernel_view(buffer), root,
                       bytes = buffer.nbytes()](const Meetings::Sources& sources) {
      const void* from = sources[static_cast<std::size_t>(root)];
      if (bytes > 0 && to != from) {
        std::memcpy(to, from, bytes);
      }
    };
    return enqueue(comm::Operation::kBroadcast, gathers_, buffer, buffer, label, move);
  }

  std::unique_ptr<Work> publish(const Label& label) override {
    return host_.transport->publish(label);
  }
  std::int64_t reserve_staging(std::int64_t, int) override { return 0; }
  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override {
    return host_.transport->shared_memory(bytes, label);
  }
  at::Tensor buffer(std::int64_t bytes) override { return host_.transport->buffer(bytes); }

  std::shared_ptr<Transport> split(const std::shared_ptr<comm::Job>& part) override {
    const comm::Link host{.job = part, .transport = host_.transport->split(part)};
    return std::make_shared<StreamTransport>(host, device_, fault_);
  }

 private:
  static void* kernel_view(const at::Tensor& tensor) {
    return sim::kernel_view(tensor.const_data_ptr());
  }

  std::uint64_t next() {
    if (const std::uint64_t current = host_.job->generation(); current != generation_) {
      generation_ = current;
      sequence_ = 0;
    }
    return ++sequence_;
  }

  template <class Move>
  std::unique_ptr<Work> enqueue(comm::Operation operation, const c10::Stream& stream,
                                const at::Tensor& src, const at::Tensor& dst, const Label& label,
                                Move move) {
    const comm::detail::DispatchGuard no_touch;
    const std::string failure = host_.job->first_failure();
    FSDP_CHECK(failure.empty(), ErrorCode::kPeerFailed, failure);
    host_.job->announce({.operation = operation,
                         .label = label,
                         .bytes = static_cast<std::int64_t>(src.nbytes()),
                         .dtype = c10::toString(src.scalar_type())});
    if (fault_ != StreamFault::kNoInputEvent) {
      c10::Event ready(device_.type());
      ready.record(guard_.getStream(device_));
      stream.wait(ready);
    }
    const std::string name = std::string(comm::to_string(operation)) + " of " + label.name;
    const auto launch = [&] {
      sim::launch(name, sim::stream_number(stream),
                  {{.begin = src.const_data_ptr(), .bytes = src.nbytes(), .writes = false},
                   {.begin = dst.const_data_ptr(), .bytes = dst.nbytes(), .writes = true}},
                  [=, meetings = meetings_, job = host_.job, number = next(), rank = rank(),
                   source = kernel_view(src)] {
                    try {
                      meetings->meet(*job, number, rank, source, name, move);
                      meetings->part(*job, number);
                    } catch (const Error& error) {
                      // As a library's watchdog would. A kernel that runs late cannot throw.
                      job->publish_failure(error.text());
                      if (sim::mode() == sim::Mode::kImmediate) {
                        throw;
                      }
                    }
                  });
    };
    try {
      launch();
    } catch (...) {
      const StreamWork ended(device_, stream, fault_, {});  // its buffers may go now
      throw;
    }
    return std::make_unique<StreamWork>(device_, stream, fault_, std::vector{src, dst});
  }

  comm::Link host_;
  std::shared_ptr<Meetings> meetings_;
  c10::Device device_;
  StreamFault fault_;
  comm::Traits traits_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream gathers_, reductions_;
  std::uint64_t generation_ = 0, sequence_ = 0;
};

}  // namespace

comm::Link make_stream_link(const comm::Link& host, int device, StreamFault fault) {
  return {.job = host.job,
          .transport = std::make_shared<StreamTransport>(host, sim::device(device), fault)};
}

}  // namespace fsdp::test
