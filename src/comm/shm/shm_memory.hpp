// SPDX-License-Identifier: Apache-2.0
/// The segments that one rank of the shm transport knows: its own, which peers read in place, and
/// the peers', mapped when they are first met.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "shm/group.hpp"
#include "shm/segment.hpp"

namespace fsdp::comm::detail {

/// *Thread safety*: internally locked; tensors over its segments may die on any thread.
class ShmMemory : public std::enable_shared_from_this<ShmMemory> {
 public:
  explicit ShmMemory(std::shared_ptr<shm::Group> group) : group_(std::move(group)) {}

  /// Bytes of this rank's that peers may read in place; zero at first.
  /// @throws Error kIo when there is too little memory or there are too many
  at::Tensor make_buffer(std::int64_t bytes);

  /// Bytes that all ranks may open, and their segment's id.
  std::pair<at::Tensor, std::uint32_t> make_shared(std::int64_t bytes);
  /// The bytes of a segment that `owner` made for all, for reading and writing.
  at::Tensor open_shared(int owner, std::uint32_t id, std::int64_t bytes);

  /// Where peers find these bytes; nothing when they lie in private memory.
  std::optional<shm::Source> locate(const void* data, std::size_t bytes);
  /// Where this rank sees them. @throws Error kPeerFailed when they cannot be opened
  const std::byte* find(const shm::Source& source);

 private:
  using Name = std::pair<int, std::uint32_t>;  ///< owner and id
  struct Known {
    std::shared_ptr<shm::Segment> segment;
    bool is_held = false;  ///< by a tensor of this rank
  };

  Known& look_up(const Name& name);
  std::pair<at::Tensor, std::uint32_t> make(std::int64_t bytes, bool frees);
  void forget(const Name& name, bool frees) noexcept;
  at::Tensor wrap(const Name& name, const std::shared_ptr<shm::Segment>& segment,
                  std::int64_t bytes, bool frees);

  std::shared_ptr<shm::Group> group_;
  std::mutex mutex_;
  std::map<Name, Known> known_;
};

}  // namespace fsdp::comm::detail
