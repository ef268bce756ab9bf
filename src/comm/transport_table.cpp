// SPDX-License-Identifier: Apache-2.0
#include "comm/transport_table.hpp"

#include <algorithm>
#include <utility>

#include "comm/device/device_group_of_one.hpp"
#include "comm/device/device_identity.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/base/log.hpp"

namespace fsdp::comm {
namespace detail {
namespace {

constexpr const char* kAuto = "auto";

}  // namespace

std::vector<TransportRow> transport_table() {
  return {threads_row(), shm_row(),  gloo_row(),  two_level_row(),
          c10d_row(),    nccl_row(), staged_row()};
}

TransportRow find_row(const std::string& name) {
  for (TransportRow& row : transport_table()) {
    if (row.info.traits.name == name) {
      return std::move(row);
    }
  }
  fail(ErrorCode::kInternal, "no transport is called '", name, "'");
}

namespace {

/// Why two ranks on one device cannot be; the same on all ranks. @collective @blocks
std::optional<std::string> find_shared_device(const Site& site) {
  const auto devices = site.ask_all("device identity", device_identity(site.device()));
  for (std::size_t rank = 1; rank < devices.size(); ++rank) {
    const auto other = std::ranges::find(devices, devices[rank]) - devices.begin();
    if (static_cast<std::size_t>(other) < rank) {
      return describe_shared_device(static_cast<int>(other), static_cast<int>(rank), devices[rank]);
    }
  }
  return std::nullopt;
}

/// Who carries the tensors of site.device(). @collective all ranks @blocks
TransportRow choose_device_row(const Site& site) {
  const bool is_auto = site.wish() == kAuto;
  TransportRow row = is_auto ? nccl_row() : find_row(site.wish());
  if (!row.info.carries_device) {
    return staged_row();
  }
  if (row.needs_own_device) {
    const auto shared = find_shared_device(site);
    FSDP_CHECK(!shared, ErrorCode::kInvalidArgument, *shared);
  }
  const auto reason = row.cannot_run(site);
  if (!reason) {
    return row;
  }
  FSDP_CHECK(is_auto, ErrorCode::kUnsupported, "transport ", site.wish(), " ", *reason);
  if (site.rank() == 0) {
    base::log(base::LogLevel::kWarn, "transport ", row.info.traits.name, " ", *reason,
              ". Tensors go through copies on the host (transport staged), which hold it up and "
              "are slow");
  }
  return staged_row();
}

/// On the host. One rank alone needs none that connects processes.
Link connect_host(const Site& site) {
  if (site.size() == 1) {
    return threads_row().make(site);
  }
  return choose_row(site).make(site);
}

}  // namespace

Link connect(const Site& site) {
  const bool asks_for_device = site.wish() != kAuto && find_row(site.wish()).info.carries_device;
  if (site.device().is_cpu()) {
    FSDP_CHECK(!asks_for_device, ErrorCode::kInvalidArgument, "transport ", site.wish(),
               " carries tensors of an accelerator, and these ranks compute on the CPU: choose a "
               "device (--device, InitOptions::device) or another transport");
    return connect_host(site);
  }
  if (site.size() == 1 && !asks_for_device) {
    Link host = connect_host(site);
    auto job = host.job;
    return {std::move(job), make_device_group_of_one(std::move(host), site.device())};
  }
  const TransportRow row = choose_device_row(site);
  return row.make_over(site, connect_host(asks_for_device ? site.wishing(kAuto) : site));
}

TransportRow choose_row(const Site& site) {
  if (site.wish() != kAuto) {
    TransportRow row = find_row(site.wish());
    const auto reason = row.cannot_run(site);
    FSDP_CHECK(!reason, ErrorCode::kInvalidArgument, "transport ", site.wish(), " ", *reason);
    return row;
  }
  std::vector<TransportRow> rows = transport_table();
  std::erase_if(rows, [](const TransportRow& row) { return row.auto_order == 0; });
  std::ranges::sort(rows, {}, &TransportRow::auto_order);
  std::string reasons;
  for (TransportRow& row : rows) {
    const auto reason =
        row.info.not_built.empty() ? row.cannot_run(site) : std::optional(row.info.not_built);
    if (!reason) {
      return std::move(row);
    }
    reasons += "; " + row.info.traits.name + " " + *reason;
  }
  fail(ErrorCode::kUnsupported, "no transport of this build connects these ranks", reasons);
}

}  // namespace detail

std::vector<TransportInfo> transports() {
  std::vector<TransportInfo> infos;
  for (detail::TransportRow& row : detail::transport_table()) {
    infos.push_back(std::move(row.info));
  }
  return infos;
}

std::vector<std::string> transport_words() {
  std::vector<std::string> words{detail::kAuto};
  for (const TransportInfo& info : transports()) {
    if (info.has_word) {
      words.push_back(info.traits.name);
    }
  }
  return words;
}

std::string transport_words_text() {
  const std::vector<std::string> words = transport_words();
  std::string text = words.front();
  for (std::size_t i = 1; i < words.size(); ++i) {
    text += (i + 1 < words.size() ? ", " : " or ") + words[i];
  }
  return text;
}

void check_transport_word(const std::string& word) {
  FSDP_CHECK(std::ranges::count(transport_words(), word) == 1, ErrorCode::kInvalidArgument,
             "transport is '", word, "', must be ", transport_words_text());
  if (word != detail::kAuto) {
    const TransportInfo info = detail::find_row(word).info;
    FSDP_CHECK(info.not_built.empty(), ErrorCode::kUnsupported, "transport ", word, " ",
               info.not_built);
  }
}

}  // namespace fsdp::comm
