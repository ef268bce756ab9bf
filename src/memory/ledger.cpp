// SPDX-License-Identifier: Apache-2.0
#include "fsdp/memory/ledger.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "fsdp/base/error.hpp"

namespace fsdp::memory {

const char* to_string(Kind kind) {
  switch (kind) {
    case Kind::kShards: return "parameter shards";
    case Kind::kLowPrecision: return "low-precision copies";
    case Kind::kSecondary: return "secondary weights";
    case Kind::kGradShards: return "gradient shards";
    case Kind::kMoments: return "optimizer moments";
    case Kind::kGatherSlots: return "gather slots";
    case Kind::kReduceBuffers: return "reduce buffers";
    case Kind::kDeferred: return "deferred gradients";
    case Kind::kStaging: return "transport staging";
    case Kind::kFullScope: return "full parameters";
    case Kind::kOffloadHost: return "offload, host";
    case Kind::kOffloadDevice: return "offload, device";
  }
  return "unknown";
}

std::int64_t Bytes::total() const {
  return std::accumulate(by_kind.begin(), by_kind.end(), std::int64_t{0});
}

Bytes on_host(const Bytes& bytes) {
  Bytes host;
  for (const Kind kind : {Kind::kShards, Kind::kLowPrecision, Kind::kGradShards, Kind::kMoments,
                          Kind::kOffloadHost}) {
    host[kind] = bytes[kind];
  }
  return host;
}

void Ledger::add(Kind kind, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  live_[kind] += bytes;
  peak_[kind] = std::max(peak_[kind], live_[kind]);
  peak_total_ = std::max(peak_total_, live_.total());
}

void Ledger::remove(Kind kind, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  const std::int64_t left = live_[kind] - bytes;
  FSDP_ASSERT(left >= 0, "the ledger has ", left, " bytes of ", to_string(kind));
  live_[kind] = left;
}

Bytes Ledger::live() const {
  std::lock_guard lock(mutex_);
  return live_;
}

Bytes Ledger::peak() const {
  std::lock_guard lock(mutex_);
  return peak_;
}

std::int64_t Ledger::peak_total() const {
  std::lock_guard lock(mutex_);
  return peak_total_;
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

std::string format(const Bytes& bytes) {
  std::string table;
  char line[96];
  const auto append = [&](const char* name, std::int64_t value) {
    std::snprintf(line, sizeof(line), "  %-20s %14s\n", name, format_bytes(value).c_str());
    table += line;
  };
  for (int kind = 0; kind < kKinds; ++kind) {
    if (bytes[static_cast<Kind>(kind)] != 0) {
      append(to_string(static_cast<Kind>(kind)), bytes[static_cast<Kind>(kind)]);
    }
  }
  append("total", bytes.total());
  return table;
}

}  // namespace fsdp::memory
