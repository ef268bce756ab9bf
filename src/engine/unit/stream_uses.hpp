// SPDX-License-Identifier: Apache-2.0
/// Order between the streams that a program computes on.
///
/// NOTE [several streams]
/// One stream needs no care: a collective starts after what the current stream has been given, and
/// its wait makes the current stream wait. Where a program computes on several, events order six
/// things that no wait of a collective covers, and the host waits for none:
///
///   a touch on another stream       after the stream that waited for the gather
///   a gather into a slot            after the streams that read what was in it
///   a gather from a slice           after the stream that wrote the slice, or the secondary shard
///   a reduction                     after the streams that collected its gradients
///   a gradient into a reduce buffer after the reduction that had the buffer before
///   the end of backward             the caller's stream, after all that backward used
///
/// What a stream only reads or collects is noted, without an event; the event is recorded when
/// another stream has to come after. So one stream alone costs an event per gather and per
/// reduction. On the CPU, where kernels run as they are called, all of this does nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace fsdp::engine {

/// The streams that use something. *Invariants*: allocates nothing once each stream has used it.
/// *Thread safety*: under the engine's lock.
class StreamUses {
 public:
  explicit StreamUses(c10::Device device) : device_(device) {}

  /// What the current stream is given until somebody comes after uses it.
  void note();
  /// What the current stream has been given so far uses it, and nothing of what it gets next.
  void mark();
  /// What the current stream gets from now on comes after all uses by other streams.
  void come_after();
  /// There are no uses any more.
  void clear();

 private:
  struct Use {
    c10::Stream stream;
    c10::Event event;
    bool is_there;
    bool is_recorded;
  };

  c10::Stream current() const;
  Use& use_of(const c10::Stream& stream);

  c10::Device device_;
  std::vector<Use> uses_;  ///< by stream, few; events are used again
};

}  // namespace fsdp::engine
