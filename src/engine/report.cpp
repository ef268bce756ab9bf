// SPDX-License-Identifier: Apache-2.0
#include "fsdp/engine/report.hpp"

#include <cstdio>

namespace fsdp {

namespace {

std::string line_of(const UnitInfo& unit) {
  char numbers[96];
  std::snprintf(numbers, sizeof(numbers), "%12lld %12lld", static_cast<long long>(unit.numel),
                static_cast<long long>(unit.shard_numel));
  std::string line = std::string(numbers) + "  " + unit.name + ", " + to_string(unit.strategy);
  line += unit.stays_gathered ? ", stays gathered" : "";
  line += unit.is_optional ? ", optional" : "";
  line += unit.is_unsharded ? ", gathered now" : "";
  return line + "\n";
}

/// Nothing where nothing of the kind happened.
std::string traffic(const char* name, std::int64_t count, std::int64_t bytes) {
  if (count == 0) {
    return {};
  }
  char line[96];
  std::snprintf(line, sizeof(line), "  %-20s %14s in %lld\n", name,
                memory::format_bytes(bytes).c_str(), static_cast<long long>(count));
  return line;
}

}  // namespace

std::string to_string(const Report& report) {
  std::string text = std::to_string(report.units.size()) + " units over " +
                     std::to_string(report.ranks) + " ranks\n    elements   this shard  unit\n";
  for (const UnitInfo& unit : report.units) {
    text += line_of(unit);
  }
  const Counters& of = report.counters;
  text += "traffic\n";
  text += traffic("gathers", of.gathers, of.gather_bytes);
  text += traffic("reductions", of.reduce_scatters, of.reduce_bytes);
  text += traffic("over replicas", of.replica_reductions, of.replica_bytes);
  text += traffic("refreshes", of.refreshes, of.refresh_bytes);
  text += traffic("transfers", of.transfers, of.transfer_bytes);
  text += "memory now\n" + memory::format(report.live);
  text += "memory at its peak, as promised\n" + memory::format(report.promise);
  return text;
}

}  // namespace fsdp
