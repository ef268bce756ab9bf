// SPDX-License-Identifier: Apache-2.0
/// Memory that processes of one host share: an anonymous file (memfd) that no other user can open
/// and that is gone with the last process that holds it, SIGKILL included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fsdp::shm {

/// The job a segment belongs to; every opener compares it. 128 random bits of rank 0.
struct Identity {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Identity&) const = default;
};
Identity make_identity();

/// Where a peer finds a segment: an open descriptor of the process that made it.
struct Address {
  std::int32_t process = 0;
  std::int32_t descriptor = -1;
};

/// A mapped segment. The first page is a header with the identity, the data begin behind it.
///
/// *Invariants*: all pages are reserved when it is made and its size is sealed, so that no access
/// raises SIGBUS. *Thread safety*: the members are; what the bytes hold is the caller's concern.
class Segment {
 public:
  /// Makes a segment of `bytes` zero bytes.
  /// @throws Error kIo naming the bytes wanted and what the system said
  static std::shared_ptr<Segment> create(const Identity& identity, std::size_t bytes);
  /// Maps what another process (or this one) has made.
  /// @throws Error kPeerFailed when it is not there or cannot be opened, kMismatch when it belongs
  /// to another job or is no segment
  static std::shared_ptr<Segment> open(const Identity& identity, const Address& address);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// Valid while this object lives, on the rank that made it.
  Address address() const;
  /// Gives the data's memory back to the system, also where peers still map it; it reads as zero
  /// then.
  void free_pages() noexcept;

 private:
  Segment(int descriptor, bool is_owner, std::size_t bytes);

  int descriptor_;  ///< -1 on those who opened it
  std::size_t bytes_;
  std::byte* mapping_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace fsdp::shm
