// SPDX-License-Identifier: Apache-2.0
/// What the engine keeps in memory, by kind, to the byte. Every buffer of the engine is entered
/// when it is made and struck out when it is freed; the promise printed before step 1 is the same
/// table, known in advance.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

namespace fsdp::memory {

/// What a buffer is for.
enum class Kind {
  kShards,         ///< this rank's slices of the parameters
  kLowPrecision,   ///< the same in the type that operators take, where that is another one
  kSecondary,      ///< more of the parameters, kept so that gathers reach less far
  kGradShards,     ///< this rank's slices of the gradients
  kMoments,        ///< optimizer state
  kGatherSlots,    ///< where units are gathered
  kReduceBuffers,  ///< where a unit's gradients are collected before they are reduced
  kDeferred,       ///< gradients that wait for a later backward to reduce them
  kStaging,        ///< what the transport needs beyond the above
  kFullScope,      ///< whole units held by full_parameters()
  kOffloadHost,    ///< with offloading, what the host holds for it beside the shards
  kOffloadDevice,  ///< and what the device holds: gradients on their way, weights never gathered
};
inline constexpr int kKinds = 12;

/// The words of a kind in the promise, such as "parameter shards".
const char* to_string(Kind kind);

/// Bytes by kind.
struct Bytes {
  std::array<std::int64_t, kKinds> by_kind{};

  std::int64_t& operator[](Kind kind) { return by_kind[static_cast<std::size_t>(kind)]; }
  std::int64_t operator[](Kind kind) const { return by_kind[static_cast<std::size_t>(kind)]; }
  std::int64_t total() const;
  bool operator==(const Bytes&) const = default;
};

/// Of a module that is offloaded (MemoryOptions::offload), what lies in the host's memory: kShards,
/// kLowPrecision, kGradShards, kMoments and kOffloadHost. All other kinds are on the device.
Bytes on_host(const Bytes& bytes);

/// The running account of one rank.
///
/// *Invariants*: no kind is ever negative. *Thread safety*: all members may be called from any
/// thread.
class Ledger {
 public:
  /// Enters a buffer when it is made.
  void add(Kind kind, std::int64_t bytes);
  /// Strikes it out when it is freed. @throws Error kInternal when less than that is entered
  void remove(Kind kind, std::int64_t bytes);
  /// Bytes held now, and the largest each kind (and the total) has been.
  Bytes live() const;
  Bytes peak() const;
  std::int64_t peak_total() const;

 private:
  mutable std::mutex mutex_;
  Bytes live_;
  Bytes peak_;
  std::int64_t peak_total_ = 0;
};

/// A table of `bytes` by kind as a person reads it, one line per kind, zero kinds left out.
std::string format(const Bytes& bytes);
/// "1.50 MiB".
std::string format_bytes(std::int64_t bytes);

}  // namespace fsdp::memory
