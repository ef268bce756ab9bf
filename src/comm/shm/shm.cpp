// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shm.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/checks.hpp"
#include "comm/dispatch_guard.hpp"
#include "comm/group_of_one.hpp"
#include "comm/reduce_slices.hpp"
#include "comm/seat.hpp"
#include "comm/shm/shm_exchange.hpp"
#include "comm/shm/shm_meeting.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm {
namespace {

using detail::Description;
using detail::ShmExchange;
using detail::ShmSide;
using detail::ShmSource;
using Slices = std::span<const std::byte* const>;

ShmSource source_of(const at::Tensor& src, const Description& description, bool is_sliced) {
  return {.data = src.defined() ? src.const_data_ptr() : nullptr,
          .bytes = src.defined() ? src.nbytes() : 0,
          .read_bytes = static_cast<std::size_t>(description.bytes),
          .is_sliced = is_sliced};
}

/// Keeps the tensors of a collective; what is read is the sub-class's concern.
class ShmWork : public Work {
 public:
  ShmWork(std::shared_ptr<ShmSide> side, const Description& description, const ShmSource& source,
          at::Tensor dst, at::Tensor src)
      : dst_(std::move(dst)),
        src_(std::move(src)),
        exchange_(std::move(side), description, source) {}

  void wait() override {
    const detail::DispatchGuard guard;
    exchange_.wait([this](std::size_t offset, std::size_t bytes, Slices slices) {
      read(static_cast<std::byte*>(dst_.mutable_data_ptr()), offset, bytes, slices);
    });
  }

 protected:
  virtual void read(std::byte* dst, std::size_t offset, std::size_t bytes, Slices slices) = 0;

  const at::Tensor& dst() const { return dst_; }
  const at::Tensor& src() const { return src_; }
  std::size_t slice_bytes() const { return static_cast<std::size_t>(exchange_.mine().bytes); }

 private:
  at::Tensor dst_;
  at::Tensor src_;
  ShmExchange exchange_;  // ends first: peers may still read src_
};

class AllGatherWork : public ShmWork {
 public:
  using ShmWork::ShmWork;

 private:
  void read(std::byte* dst, std::size_t offset, std::size_t bytes, Slices slices) override {
    for (std::size_t r = 0; r < slices.size(); ++r) {
      std::byte* place = dst + r * slice_bytes() + offset;
      if (place != slices[r]) {
        std::memcpy(place, slices[r], bytes);
      }
    }
  }
};

class ReduceScatterWork : public ShmWork {
 public:
  ReduceScatterWork(std::shared_ptr<ShmSide> side, const Description& description,
                    const ShmSource& source, at::Tensor dst, at::Tensor src, Finish finish)
      : ShmWork(std::move(side), description, source, std::move(dst), std::move(src)),
        finish_(finish) {}

 private:
  void read(std::byte* to, std::size_t offset, std::size_t bytes, Slices slices) override {
    pointers_.assign(slices.begin(), slices.end());
    const std::size_t first = offset / src().element_size();
    detail::reduce_slices(to + first * dst().element_size(), dst().scalar_type(), pointers_,
                          static_cast<std::int64_t>(bytes / src().element_size()),
                          src().scalar_type(), finish_);
  }

  Finish finish_;
  std::vector<const void*> pointers_;
};

class BroadcastWork : public ShmWork {
 public:
  BroadcastWork(const std::shared_ptr<ShmSide>& side, const Description& description,
                const ShmSource& source, const at::Tensor& buffer)
      : ShmWork(side, description, source, buffer, buffer),
        root_(static_cast<std::size_t>(description.root)),
        is_root_(side->group->rank() == description.root) {}

 private:
  void read(std::byte* dst, std::size_t offset, std::size_t bytes, Slices slices) override {
    if (!is_root_) {
      std::memcpy(dst + offset, slices[root_], bytes);
    }
  }

  std::size_t root_;
  bool is_root_;
};

class PublishWork : public Work {
 public:
  PublishWork(std::shared_ptr<ShmSide> side, const Description& description)
      : exchange_(std::move(side), description, {}) {}
  void wait() override {
    exchange_.wait([](std::size_t, std::size_t, Slices) {});
  }

 private:
  ShmExchange exchange_;
};

/// The whole job of a host, or a group of it: then `job_` is the whole.
class ShmTransport final : public detail::HostTransport {
 public:
  ShmTransport(std::shared_ptr<shm::Group> group, detail::SeatPointer seat,
               detail::Milliseconds timeout)
      : HostTransport(detail::shm_traits()),
        side_(std::make_shared<ShmSide>()),
        numbers_(std::make_shared<detail::GroupNumbers>()) {
    side_->memory = std::make_shared<detail::ShmMemory>(group);
    side_->seat = std::move(seat);
    side_->group = std::move(group);
    side_->timeout = std::make_shared<std::atomic<detail::Milliseconds>>(timeout);
  }
  ShmTransport(std::shared_ptr<ShmTransport> job, std::shared_ptr<shm::Group> group,
               detail::SeatPointer seat)
      : HostTransport(detail::shm_traits()),
        job_(std::move(job)),
        side_(std::make_shared<ShmSide>(*job_->side_)),
        numbers_(job_->numbers_) {
    side_->group = std::move(group);
    side_->seat = std::move(seat);
    side_->open.clear();
  }

  ~ShmTransport() override {
    if (job_) {
      return;
    }
    // The peers will only see that this rank has left.
    if (std::uncaught_exceptions() > 0) {
      side_->group->publish_failure("an exception ended it; its own output says which");
    }
    side_->group->leave();
  }

  int rank() const override { return side_->group->rank(); }
  int size() const override { return side_->group->size(); }

  std::unique_ptr<Work> all_gather(at::Tensor dst, at::Tensor src, const Label& label) override {
    const detail::DispatchGuard guard;
    const Description description = detail::check_all_gather(*this, dst, src, label);
    const ShmSource source = source_of(src, description, false);
    return std::make_unique<AllGatherWork>(side_, description, source, std::move(dst),
                                           std::move(src));
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor dst, at::Tensor src, Finish finish,
                                       const Label& label) override {
    const detail::DispatchGuard guard;
    const Description description = detail::check_reduce_scatter(*this, dst, src, finish, label);
    const ShmSource source = source_of(src, description, true);
    return std::make_unique<ReduceScatterWork>(side_, description, source, std::move(dst),
                                               std::move(src), finish);
  }

  std::unique_ptr<Work> broadcast(at::Tensor buffer, int root, const Label& label) override {
    const detail::DispatchGuard guard;
    const Description description = detail::check_broadcast(*this, buffer, root, label);
    const ShmSource source = source_of(rank() == root ? buffer : at::Tensor(), description, false);
    return std::make_unique<BroadcastWork>(side_, description, source, buffer);
  }

  std::unique_ptr<Work> publish(const Label& label) override {
    return std::make_unique<PublishWork>(side_, detail::describe_agree(label));
  }

  std::int64_t reserve_staging(std::int64_t, int) override {
    return static_cast<std::int64_t>(shm::kStagingBytes);
  }

  at::Tensor shared_memory(std::int64_t bytes, const Label& label) override;

  at::Tensor buffer(std::int64_t bytes) override {
    const detail::DispatchGuard guard;
    FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "a buffer of ", bytes, " bytes");
    return side_->memory->make_buffer(bytes);
  }

  void announce(const Announcement& announcement) override {
    side_->seat->announced->add(detail::describe(announcement), generation());
  }

  std::shared_ptr<HostTransport> make_part(const std::vector<int>& ranks,
                                           const std::string& label) override;

  void set_timeout(std::chrono::milliseconds timeout) override {
    *side_->timeout = std::max(timeout, detail::Milliseconds(1));
  }
  std::chrono::milliseconds timeout() const override { return *side_->timeout; }

  void recover() override;
  std::uint64_t generation() const override { return side_->group->generation(); }
  shm::Group& group() { return *side_->group; }

  void publish_failure(const std::string& text) noexcept override {
    side_->group->publish_failure(text);
  }
  std::string first_failure() noexcept override {
    const auto first = side_->group->first_failure();
    return first ? side_->name_failure(*first) : "";
  }

 private:
  const std::shared_ptr<ShmTransport> job_;
  std::shared_ptr<ShmSide> side_;
  std::shared_ptr<detail::GroupNumbers> numbers_;
};

void ShmTransport::recover() {
  if (job_) {
    return job_->recover();
  }
  using End = shm::WaitEnd;
  shm::Group& group = *side_->group;
  const End end = group.recover(detail::Clock::now() + side_->timeout->load());
  FSDP_CHECK(end.kind != End::kTimeout, ErrorCode::kTimeout, "recover() on rank ", rank(),
             " waited ", detail::to_text(side_->timeout->load()),
             "; missing: ", group.list_missing_recovery(),
             ". Every rank must make this call; FSDP_TIMEOUT sets the limit");
  FSDP_CHECK(end.kind == End::kReady, ErrorCode::kPeerFailed, "recover() on rank ", rank(), ": ",
             group.describe_process(end.rank),
             " has ended or left and cannot come back: start the job again from a checkpoint");
}

/// What a rank tells the others of a segment that it has made for them.
struct Offer {
  std::uint32_t segment = 0;
  std::uint32_t is_made = 0;
  std::array<char, 504> problem{};
};

/// Makes memory for all to open; what fails is part of the offer.
at::Tensor make_offered(ShmSide& side, std::int64_t bytes, Offer& offer) {
  at::Tensor memory;
  try {
    std::tie(memory, offer.segment) = side.memory->make_shared(bytes);
    offer.is_made = 1;
  } catch (const Error& error) {
    error.text().copy(offer.problem.data(), offer.problem.size() - 1);
  }
  return memory;
}

at::Tensor ShmTransport::shared_memory(std::int64_t bytes, const Label& label) {
  const detail::DispatchGuard guard;
  FSDP_CHECK(bytes >= 0, ErrorCode::kInvalidArgument, "shared memory of ", bytes, " bytes");
  const int owner = side_->seat->ranks.front() - side_->group->first_rank();
  Offer offer;
  at::Tensor memory = rank() == 0 ? make_offered(*side_, bytes, offer) : at::Tensor();
  // The offer travels in the slot; a second agreement keeps it until all have opened it.
  Description description = detail::describe_agree(label);
  description.bytes = bytes;
  const ShmSource source{
      .data = &offer, .bytes = rank() == 0 ? sizeof(offer) : 0, .read_bytes = sizeof(offer)};
  ShmExchange announcement(side_, description, source);
  announcement.wait([&](std::size_t, std::size_t, Slices slices) {
    if (rank() != 0) {
      std::memcpy(&offer, slices[0], sizeof(offer));
    }
  });
  FSDP_CHECK(offer.is_made == 1, ErrorCode::kIo, "\"", label.name, "\": rank ",
             side_->seat->ranks.front(), " ", offer.problem.data());
  try {
    if (rank() != 0) {
      memory = side_->memory->open_shared(owner, offer.segment, bytes);
    }
  } catch (const Error& error) {
    side_->fail_group(announcement.mine(), error.code(), error.text());
  }
  publish(label)->wait();
  return memory;
}

/// What one rank cannot do, all throw.
void check_offers(const std::vector<Offer>& offers, const std::string& label) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    FSDP_CHECK(offers[rank].problem.front() == '\0', ErrorCode::kIo, "split \"", label, "\": rank ",
               rank, " of the ranks to be split ", offers[rank].problem.data());
  }
}

std::shared_ptr<detail::HostTransport> ShmTransport::make_part(const std::vector<int>& ranks,
                                                               const std::string& label) {
  const detail::DispatchGuard guard;
  shm::Group& whole = job_ ? *job_->side_->group : *side_->group;
  auto seat = detail::agree_on_split(*this, traits().name, *side_->seat, *numbers_, ranks, label,
                                     whole.size());
  // The first of each group makes its slots; who is in no group of several takes part all the same.
  const bool is_alone = seat->size() == 1;
  const auto bytes = static_cast<std::int64_t>(shm::Group::part_bytes(seat->size()));
  Offer offer;
  at::Tensor slots;
  if (seat->index == 0 && !is_alone) {
    slots = make_offered(*side_, bytes, offer);
  }
  const std::string name = "split: " + label;
  const std::vector<Offer> offers = gather_values(*this, offer, name);
  check_offers(offers, label);
  Offer opened;
  try {
    if (seat->index != 0) {
      slots = side_->memory->open_shared(seat->ranks.front() - whole.first_rank(),
                                         offers[static_cast<std::size_t>(ranks.front())].segment,
                                         bytes);
    }
  } catch (const Error& error) {
    error.text().copy(opened.problem.data(), opened.problem.size() - 1);
  }
  // The makers keep theirs until all have opened it.
  check_offers(gather_values(*this, opened, name), label);
  if (is_alone) {
    return detail::make_group_of_one(link());
  }
  auto job = job_ ? job_ : std::static_pointer_cast<ShmTransport>(shared_from_this());
  std::shared_ptr<std::byte> memory(static_cast<std::byte*>(slots.mutable_data_ptr()),
                                    [slots](std::byte*) {});
  std::vector<int> members = seat->ranks;
  for (int& member : members) {
    member -= whole.first_rank();
  }
  auto group = std::make_shared<shm::Group>(job->side_->group, std::move(memory),
                                            std::move(members), seat->index);
  if (side_->group->is_in_background()) {
    group->wait_in_background();
  }
  return std::make_shared<ShmTransport>(std::move(job), std::move(group), std::move(seat));
}

}  // namespace

std::shared_ptr<detail::HostTransport> split_for_background(detail::HostTransport& whole,
                                                            const std::string& label) {
  std::vector<int> ranks(static_cast<std::size_t>(whole.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto part = whole.make_part(ranks, label);
  if (auto* of_several = dynamic_cast<ShmTransport*>(part.get())) {
    of_several->group().wait_in_background();
  }
  return part;
}

std::shared_ptr<detail::HostTransport> make_shm_transport(const detail::SetUp& set_up,
                                                          std::function<std::string()> elsewhere) {
  const detail::DispatchGuard guard;
  auto group = detail::meet_in_shared_memory(set_up);
  group->watch_elsewhere(std::move(elsewhere));
  auto seat = set_up.job_size == 0 ? detail::whole_seat("shm", set_up.rank, set_up.size)
                                   : detail::host_seat("shm", set_up.rank, set_up.size,
                                                       set_up.first_rank, set_up.job_size);
  auto transport =
      std::make_shared<ShmTransport>(std::move(group), std::move(seat), set_up.timeout);
  transport->barrier({.name = "connect"});
  return transport;
}

}  // namespace fsdp::comm
