// SPDX-License-Identifier: Apache-2.0
/// The transports there are, in one table: what `init` chooses from and command lines accept, what
/// the documentation lists and the contract suite runs over.
#pragma once

#include <string>
#include <vector>

#include "fsdp/comm/transport.hpp"

namespace fsdp::comm {

/// A transport, whether or not this build has it.
struct TransportInfo {
  Traits traits;
  std::string between;         ///< whom it connects, in a few words
  bool has_word = true;        ///< InitOptions::transport and --transport take its name
  std::string not_built = {};  ///< why this build is without it; empty when it is there
  /// For tensors of an accelerator; numbers on the host go over another of the table.
  bool carries_device = false;
};

/// Every transport, in the order in which they are listed.
std::vector<TransportInfo> transports();

/// What InitOptions::transport and --transport take: "auto", then the names.
std::vector<std::string> transport_words();

/// The same for a message: "auto, shm, gloo, shm+gloo, c10d, nccl or staged".
std::string transport_words_text();

/// @throws Error kInvalidArgument for a word that is none of these, kUnsupported for a transport
/// that this build is without, with the reason
void check_transport_word(const std::string& word);

/// @throws Error kInvalidArgument for a word that InitOptions::device does not take
void check_device_word(const std::string& word);

/// The same, and that this LibTorch finds such a device on this machine; starts none.
/// @throws Error kUnsupported when it does not, saying what is missing
void check_device(const std::string& word);

}  // namespace fsdp::comm
