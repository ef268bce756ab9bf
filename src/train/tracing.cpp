// SPDX-License-Identifier: Apache-2.0
#include "train/tracing.hpp"

#include <cstdio>
#include <string>

#include "base/text.hpp"
#include "fsdp/base/error.hpp"
#include "fsdp/memory/ledger.hpp"
#include "fsdp/timeline/trace_files.hpp"

namespace fsdp::train::detail {

std::function<void(const trace::Event&)> Tracing::observer() {
  return is_on() ? recorder_.observer() : nullptr;
}

void Tracing::begin_step(std::int64_t step) {
  if (is_on() && step == first_) {
    recorder_.start();
  }
}

void Tracing::end_step(std::int64_t step, const Sharded& sharded, const World& world) {
  if (!recorder_.is_recording()) {
    return;
  }
  const memory::Bytes live = sharded.report().live;
  for (int kind = 0; kind < memory::kKinds; ++kind) {
    if (const std::int64_t bytes = live.by_kind[static_cast<std::size_t>(kind)]; bytes > 0) {
      recorder_.sample(memory::to_string(static_cast<memory::Kind>(kind)),
                       static_cast<double>(bytes));
    }
  }
  traced_ = step;
  if (step == last_) {
    finish(sharded, world);
  }
}

void Tracing::finish(const Sharded& sharded, const World& world) {
  if (!recorder_.is_recording()) {
    return;
  }
  recorder_.stop();
  try {
    const TraceFiles files = write_trace(sharded, world, recorder_, directory_);
    if (world.rank() != 0) {
      return;
    }
    std::string missing;
    if (!files.missing.empty()) {
      missing = "; it lacks ranks " + base::list_text(files.missing) +
                ", whose directory is another: put their rank-R.json beside it";
    }
    std::fprintf(stderr, "trace of steps %lld to %lld: %s opens in ui.perfetto.dev%s\n",
                 static_cast<long long>(first_), static_cast<long long>(traced_),
                 base::shown(files.path).c_str(), missing.c_str());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kIo) {
      throw;  // ranks have parted; a trace that cannot be written harms nobody
    }
    if (world.rank() == 0) {
      std::fprintf(stderr, "fsdp: no trace, the run goes on: %s\n",
                   base::shown(error.text()).c_str());
    }
  }
}

}  // namespace fsdp::train::detail
