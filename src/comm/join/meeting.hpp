// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>

namespace c10d {
class Store;
}

namespace fsdp::comm::detail {

/// The store of a job in which all ranks are.
struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  /// The literal address at which other hosts reached rank 0, a loopback address when all ranks are
  /// on one host. On rank 0 itself MASTER_ADDR may well mean loopback (/etc/hosts), so the others
  /// say what they saw.
  std::string master_address;
};

}  // namespace fsdp::comm::detail
