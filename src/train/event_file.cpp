// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "fsdp/base/error.hpp"

namespace fsdp::train::detail {
namespace {

// Fields of event.proto and summary.proto.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;
// Kinds of fields on the wire.
constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    to.push_back(static_cast<char>(value | 0x80));
  }
  to.push_back(static_cast<char>(value));
}

template <class Number>
void put_little_endian(std::string& to, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

void put_key(std::string& to, int field, int kind) {
  put_varint(to, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(kind));
}

void put_bytes(std::string& to, int field, std::string_view bytes) {
  put_key(to, field, kBytes);
  put_varint(to, bytes.size());
  to += bytes;
}

/// An event of now.
std::string event() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string text;
  put_key(text, kWallTime, kFixed64);
  put_little_endian(text, std::bit_cast<std::uint64_t>(std::chrono::duration<double>(now).count()));
  return text;
}

void put_scalar(std::string& summary, std::string_view tag, double number) {
  std::string value;
  put_bytes(value, kTag, tag);
  put_key(value, kSimpleValue, kFixed32);
  put_little_endian(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
  put_bytes(summary, kValue, value);
}

/// TFRecord's: sums of data that holds sums would be weak.
std::uint32_t masked(std::uint32_t sum) { return (sum >> 15 | sum << 17) + 0xa282ead8u; }

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static const auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
      std::uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) {
        value = value >> 1 ^ ((value & 1) != 0 ? 0x82f63b78u : 0);
      }
      table[byte] = value;
    }
    return table;
  }();
  std::uint32_t sum = ~0u;
  for (const char byte : bytes) {
    sum = sum >> 8 ^ kTable[(sum ^ static_cast<unsigned char>(byte)) & 0xff];
  }
  return ~sum;
}

EventFile::EventFile(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  // Two processes in one second have two numbers.
  path_ = (std::filesystem::path(directory) /
           ("events.out.tfevents." +
            std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) + "." +
            host + "." + std::to_string(::getpid())))
              .string();
  file_.reset(std::fopen(path_.c_str(), "wb"));
  FSDP_CHECK(file_, ErrorCode::kIo, "'", path_, "' cannot be written: ", std::strerror(errno));
  std::string first = event();
  put_bytes(first, kFileVersion, "brain.Event:2");
  put(first);
}

void EventFile::put(std::string_view event) {
  std::string length, record;
  put_little_endian(length, static_cast<std::uint64_t>(event.size()));
  record = length;
  put_little_endian(record, masked(crc32c(length)));
  record += event;
  put_little_endian(record, masked(crc32c(event)));
  const bool is_written =
      std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() &&
      std::fflush(file_.get()) == 0;
  FSDP_CHECK(is_written, ErrorCode::kIo, "'", path_, "' cannot be written: ", std::strerror(errno));
}

void EventFile::write(const StepReport& report) {
  std::string summary;
  put_scalar(summary, "loss", report.loss);
  put_scalar(summary, "grad_norm", report.grad_norm);
  put_scalar(summary, "lr", report.lr);
  put_scalar(summary, "tokens_per_s", report.tokens_per_s);
  put_scalar(summary, "wait_s", report.wait_seconds);
  if (report.validation_loss) {
    put_scalar(summary, "val_loss", *report.validation_loss);
  }
  std::string text = event();
  put_key(text, kStep, kVarint);
  put_varint(text, static_cast<std::uint64_t>(report.step));
  put_bytes(text, kSummary, summary);
  put(text);
}

}  // namespace fsdp::train::detail
