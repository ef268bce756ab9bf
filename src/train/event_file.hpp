// SPDX-License-Identifier: Apache-2.0
/// What TensorBoard shows of a run: a file of records, each a serialized `Event` of TensorFlow's
/// event.proto, framed as TFRecord has it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "train/run_log.hpp"

namespace fsdp::train::detail {

/// An event file of a run, new in each process: TensorBoard reads all of a directory as one run.
///
/// *Thread safety*: one thread.
class EventFile {
 public:
  /// Makes the directory, and a file in it. @throws Error kIo
  explicit EventFile(const std::string& directory);
  /// The numbers of a step as scalars: loss, val_loss, grad_norm, lr, tokens_per_s, wait_s.
  /// @throws Error kIo
  void write(const StepReport& report);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void put(std::string_view event);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// CRC-32C of Castagnoli, as iSCSI has it.
std::uint32_t crc32c(std::string_view bytes);

}  // namespace fsdp::train::detail
