// SPDX-License-Identifier: Apache-2.0
/// The collectives of two levels: what moves between hosts, and what happens inside them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/gloo/gloo_work.hpp"
#include "comm/host_transport.hpp"

namespace fsdp::comm::detail {

// NOTE [two levels]
// Rank = host * L + l: L ranks a host, H hosts. The ranks with the same l on all hosts are
// counterparts. Every collective begins with the headers of all ranks, as over Gloo alone: who
// meets whom, who is missing and who failed first are told in the same way. Then
//
//   all-gather      each rank sends its slice to its counterparts, straight into their dst, as soon
//                   as it starts; the ranks of a host read each other's: for each host h, an
//                   all-gather over shared memory of the block of L slices that belongs to h
//   reduce-scatter  for each host h, a reduce-scatter over shared memory of the block of L slices
//                   that belongs to h: rank l gets what this host adds to the slice of h's l-th
//                   rank, and sends it there while the next block is summed; then each rank sums
//                   what the hosts added
//   broadcast       the root sends to its counterparts, each of which broadcasts on its host
//
// So each byte crosses from a host to another once, where Gloo alone sends a slice to each of the L
// ranks there, and each host's gradients leave it as one sum.
//
// What happens inside a host, and what is sent because of it, is the progress thread's, so that
// bytes cross while the caller computes: see NOTE [the progress thread]. The caller's wait() is
// left with what Gloo's thread moves, and with the sum over hosts. A later collective's steps begin
// as soon as those of the one before are done, while its bytes are still on their way.
//
// Sums run in rank order on each host, then over the hosts in order, and are divided once: the same
// bits in every run, not those of Gloo alone. Sums of bfloat16 and float16 stay float32 until the
// last rounding, also between hosts.

/// Where a rank stands: hosts of equally many ranks, all the members of one group.
struct HostPosition {
  int hosts = 1;
  int locals = 1;
  int host = 0;
  int local = 0;
  int counterpart(int on_host) const { return on_host * locals + local; }
};

/// The slice of a member in a tensor of one dimension that has one for each.
at::Tensor slice_of(const at::Tensor& flat, int member, const HostPosition& place);

/// The ranks of this host; of the progress thread.
using Host = std::shared_ptr<HostTransport>;

/// `flat` is the whole destination, in which the own slice lies already.
Steps gather_steps(const Host& host, const HostPosition& place, const at::Tensor& flat,
                   const Label& label);

/// What reduce-scatters stage, by host; a host's own part of its own sum is both.
struct Partials {
  std::vector<at::Tensor> own;    ///< what this host adds to the slices of the hosts' ranks
  std::vector<at::Tensor> added;  ///< what the hosts add to this rank's slice
};
Steps reduce_steps(const Host& host, const HostPosition& place, const at::Tensor& dst,
                   const at::Tensor& src, const Partials& partials, const Finish& finish,
                   const Label& label);

/// `root` is a member of the group.
Steps broadcast_steps(const Host& host, const HostPosition& place, const at::Tensor& buffer,
                      int root, const Label& label);

}  // namespace fsdp::comm::detail
