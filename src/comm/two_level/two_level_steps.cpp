// SPDX-License-Identifier: Apache-2.0
#include "comm/two_level/two_level_steps.hpp"

#include <functional>
#include <utility>

#include "comm/reduce_slices.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::comm::detail {
namespace {

/// A step inside a host: what fails there ends the whole group.
void on_host(GlooWork& work, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    work.exchange().fail_group(
        work.mine(), error.code() == ErrorCode::kTimeout ? Symptom::kTimeout : Symptom::kLostPeer,
        "failed inside its host: " + error.text());
  }
}

/// The slices of a host's ranks.
at::Tensor block_of(const at::Tensor& flat, int host, const HostPosition& place) {
  const std::int64_t numel = flat.numel() / place.hosts;
  return flat.narrow(0, host * numel, numel);
}

/// The hosts in the order in which one goes through them: gathers from 0 on, as the own host's data
/// is there first; sums from 1 on, as those of other hosts have further to go.
int nth_host(int step, const HostPosition& place) { return (place.host + step) % place.hosts; }

}  // namespace

at::Tensor slice_of(const at::Tensor& flat, int member, const HostPosition& place) {
  const std::int64_t numel = flat.numel() / place.hosts / place.locals;
  return flat.narrow(0, member * numel, numel);
}

Steps gather_steps(const Host& host, const HostPosition& place, const at::Tensor& flat,
                   const Label& label) {
  return {.inside = [=](GlooWork& work) {
    for (int step = 0; step < place.hosts; ++step) {
      const int block = nth_host(step, place);
      const int peer = place.counterpart(block);
      if (block != place.host) {
        work.await_data(peer);
      }
      on_host(work, [&] {
        host->all_gather(block_of(flat, block, place), slice_of(flat, peer, place), label)->wait();
      });
    }
  }};
}

Steps reduce_steps(const Host& host, const HostPosition& place, const at::Tensor& dst,
                   const at::Tensor& src, const Partials& partials, const Finish& finish,
                   const Label& label) {
  const at::Tensor flat = src.detach().view({-1});
  Steps steps{.sends_inside = true};
  steps.inside = [=](GlooWork& work) {
    const auto start = [&](int block) {
      return host->reduce_scatter(partials.own[static_cast<std::size_t>(block)],
                                  block_of(flat, block, place), {}, label);
    };
    std::unique_ptr<Work> summing;
    on_host(work, [&] { summing = start(nth_host(1, place)); });
    for (int step = 1; step <= place.hosts; ++step) {
      on_host(work, [&] {
        auto next = step < place.hosts ? start(nth_host(step + 1, place)) : nullptr;
        summing->wait();
        summing = std::move(next);
      });
      if (const int block = nth_host(step, place); block != place.host) {
        work.send(place.counterpart(block), partials.own[static_cast<std::size_t>(block)]);
      }
    }
  };
  steps.finish = [=](const Flight&) {
    std::vector<const void*> slices;
    for (const at::Tensor& part : partials.added) {
      slices.push_back(part.const_data_ptr());
    }
    reduce_slices(dst.mutable_data_ptr(), dst.scalar_type(), slices, dst.numel(),
                  partials.added.front().scalar_type(), finish);
  };
  return steps;
}

Steps broadcast_steps(const Host& host, const HostPosition& place, const at::Tensor& buffer,
                      int root, const Label& label) {
  const int root_local = root % place.locals;
  const bool receives = place.local == root_local && place.counterpart(place.host) != root;
  return {.inside = [=](GlooWork& work) {
    if (receives) {
      work.await_data(root);
    }
    on_host(work, [&] { host->broadcast(buffer, root_local, label)->wait(); });
  }};
}

}  // namespace fsdp::comm::detail
