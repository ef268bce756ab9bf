// SPDX-License-Identifier: Apache-2.0
/// Gloo ends the process when one who has connected says what no rank says: its threads throw, and
/// nobody catches. While ranks connect, that can be a stranger.
#pragma once

#include <cstdint>
#include <set>

namespace fsdp::comm::detail {

/// While one lives, such an end is told with its cause, and who else is connected to `ports`,
/// before it happens. *Thread safety*: several may live at a time, of ranks that are threads; the
/// last one's ports count.
class NamedGlooEnd {
 public:
  explicit NamedGlooEnd(const std::set<std::uint16_t>& ports);
  ~NamedGlooEnd();
  NamedGlooEnd(const NamedGlooEnd&) = delete;
  NamedGlooEnd& operator=(const NamedGlooEnd&) = delete;
};

}  // namespace fsdp::comm::detail
