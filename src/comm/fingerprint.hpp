// SPDX-License-Identifier: Apache-2.0
/// The fixed-size record that says which collective a rank is in. Transports exchange it in front
/// of the payload, so that ranks that meet in different collectives get an error that names both
/// sides instead of an abort, mixed bits or a wait for the whole time-out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace fsdp::comm::detail {

/// What a collective is, as integers and text; the same bytes on every rank but for `rank`.
struct Fingerprint {
  static constexpr std::uint32_t kMagic = 0x46534450;  // "FSDP"
  static constexpr std::size_t kNameBytes = 72;
  static constexpr std::size_t kGroupBytes = 28;

  std::uint32_t magic = kMagic;
  std::int32_t operation = 0;                  ///< comm::Operation
  std::uint64_t sequence = 0;                  ///< counts the calls of one group
  std::int32_t unit = -1;                      ///< Label::unit
  std::int32_t root = -1;                      ///< of a broadcast
  std::int64_t bytes = 0;                      ///< of one rank's slice
  std::uint64_t name_hash = 0;                 ///< of the whole Label::name
  std::int32_t rank = -1;                      ///< who sent it, as a rank of the whole job
  std::array<char, 12> dtype{};                ///< name of the dtype, zero padded
  std::array<char, kNameBytes> name{};         ///< start of Label::name, zero padded
  std::int32_t group = 0;                      ///< Seat::group
  std::array<char, kGroupBytes> group_name{};  ///< start of Seat::name; empty for the whole job
  std::uint64_t announced = 0;                 ///< Announced::hash
};
static_assert(sizeof(Fingerprint) == 168 && std::is_trivially_copyable_v<Fingerprint>);

/// What the caller of a transport knows about a collective.
struct Description {
  std::int32_t operation = 0;
  int unit = -1;
  std::string_view name = {};
  std::int64_t bytes = 0;
  std::string_view dtype = {};
  int root = -1;
  int group = 0;
  std::string_view group_name = {};
  std::uint64_t announced = 0;
};

/// What a rank has announced in a group (Job::announce()), as a running hash; 0 for nothing.
struct Announced {
  std::uint64_t hash = 0;
  std::uint64_t generation = 0;  ///< that `hash` is of

  void add(const Description& description, std::uint64_t in_generation);
  std::uint64_t in(std::uint64_t current) const { return generation == current ? hash : 0; }
};

Fingerprint make_fingerprint(const Description& description, std::uint64_t sequence, int rank);

/// Whether two ranks of one group are in the same collective: everything but the rank is equal.
bool same_collective(const Fingerprint& left, const Fingerprint& right);

/// A 64-bit hash of everything but the rank (FNV-1a with a final mix); equal on all ranks that are
/// in the same collective.
std::uint64_t hash(const Fingerprint& fingerprint);

/// `all-gather #12 of unit "h.0"`; with ` (group "shard")` where it is not the whole job's.
std::string describe(const Fingerprint& fingerprint);

/// The same with its size: `all-gather #12 of unit "h.0" (4096 bytes of Float a slice)`.
std::string describe_in_full(const Fingerprint& fingerprint);

/// What the first rank and the first that is in another collective were doing, as
/// describe_mismatch() says it; nothing when all are in the same one. Equal on all ranks that hold
/// the same fingerprints.
std::optional<std::string> find_mismatch(std::span<const Fingerprint> by_rank);

/// What both sides were doing and the likely cause. Does not depend on the order of its arguments,
/// so that every rank reports the same text.
std::string describe_mismatch(const Fingerprint& left, const Fingerprint& right);

}  // namespace fsdp::comm::detail
