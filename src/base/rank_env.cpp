// SPDX-License-Identifier: Apache-2.0
#include "fsdp/base/rank_env.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "fsdp/base/error.hpp"

namespace fsdp::base {
namespace {

/// The variables of one launcher.
struct Protocol {
  const char* source;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // null when the launcher has none
  const char* job;         // identity of the job, for the port; null when there is none
};

constexpr Protocol kTorchrun{"torchrun",         "RANK", "WORLD_SIZE", "LOCAL_RANK",
                             "LOCAL_WORLD_SIZE", nullptr};
constexpr Protocol kOpenMpi{"open-mpi",
                            "OMPI_COMM_WORLD_RANK",
                            "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE",
                            "OMPI_MCA_ess_base_jobid"};
constexpr Protocol kMpich{"mpich",           "PMI_RANK",        "PMI_SIZE",
                          "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_PORT"};
constexpr Protocol kSlurm{"slurm",         "SLURM_PROCID", "SLURM_NTASKS",
                          "SLURM_LOCALID", nullptr,        "SLURM_JOB_ID"};

std::int64_t read_integer(const std::string& name, const std::string& text, std::int64_t low,
                          std::int64_t high, const std::string& why = "") {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, value);
  FSDP_CHECK(!text.empty() && status == std::errc() && stop == end, ErrorCode::kInvalidArgument,
             name, " is '", text, "', must be a whole number without blanks");
  FSDP_CHECK(value >= low && value <= high, ErrorCode::kInvalidArgument, name, " is '", text,
             "', must be in [", low, ", ", high, "]", why);
  return value;
}

class Reader {
 public:
  Reader(const Lookup& lookup, const Protocol& protocol) : lookup_(lookup), protocol_(protocol) {}

  RankEnvironment read() const {
    constexpr std::int64_t kMax = std::numeric_limits<int>::max();
    RankEnvironment environment;
    environment.source = protocol_.source;
    environment.size =
        static_cast<int>(read_integer(protocol_.size, require(protocol_.size), 1, kMax));
    environment.rank = static_cast<int>(read_integer(
        protocol_.rank, require(protocol_.rank), 0, environment.size - 1,
        std::string(" because ") + protocol_.size + " is " + std::to_string(environment.size)));
    read_local(environment);
    read_master(environment);
    return environment;
  }

 private:
  std::string require(const char* name) const {
    const auto value = lookup_(name);
    FSDP_CHECK(value.has_value(), ErrorCode::kInvalidArgument, name, " is not set although ",
               name == protocol_.size ? protocol_.rank : protocol_.size, " is '",
               lookup_(name == protocol_.size ? protocol_.rank : protocol_.size).value_or(""),
               "': set both or neither");
    return *value;
  }

  /// Ranks on this host. Without a word from the launcher all ranks are taken to be on this host.
  void read_local(RankEnvironment& environment) const {
    environment.local_size = environment.size;
    if (protocol_.local_size != nullptr) {
      if (const auto text = lookup_(protocol_.local_size)) {
        environment.local_size =
            static_cast<int>(read_integer(protocol_.local_size, *text, 1, environment.size));
      }
    } else if (const auto text = lookup_("SLURM_STEP_TASKS_PER_NODE")) {
      // "4", or "4(x2)" or "4,3" on several hosts.
      const std::string first = text->substr(0, text->find_first_of("(,"));
      environment.local_size =
          static_cast<int>(read_integer("SLURM_STEP_TASKS_PER_NODE", first, 1, environment.size));
    }
    environment.local_rank = environment.rank % environment.local_size;
    if (const auto text = lookup_(protocol_.local_rank)) {
      environment.local_rank =
          static_cast<int>(read_integer(protocol_.local_rank, *text, 0, environment.size - 1));
      FSDP_CHECK(environment.local_rank < environment.local_size, ErrorCode::kInvalidArgument,
                 protocol_.local_rank, " is '", *text, "', must be below the ",
                 environment.local_size, " ranks of this host");
    }
  }

  void read_master(RankEnvironment& environment) const {
    const auto address = lookup_("MASTER_ADDR");
    const auto port = lookup_("MASTER_PORT");
    if (address) {
      FSDP_CHECK(!address->empty() && address->find_first_of(" \t\n") == std::string::npos,
                 ErrorCode::kInvalidArgument, "MASTER_ADDR is '", *address,
                 "', must be a host name or an address without blanks");
      // As in a URL: "[::1]" is ::1.
      const bool is_bracketed =
          address->size() > 2 && address->front() == '[' && address->back() == ']';
      environment.master_addr = is_bracketed ? address->substr(1, address->size() - 2) : *address;
    }
    if (port) {
      environment.master_port =
          static_cast<std::uint16_t>(read_integer("MASTER_PORT", *port, 1, 65535));
    }
    if (environment.size == 1 || (address && port)) {
      return;
    }
    const char* missing = address ? "MASTER_PORT" : "MASTER_ADDR";
    FSDP_CHECK(protocol_.job != nullptr, ErrorCode::kInvalidArgument, missing,
               " is not set although WORLD_SIZE is ", environment.size,
               ": where do the ranks meet? `fsdp run` and torchrun set it");
    FSDP_CHECK(address || environment.local_size == environment.size, ErrorCode::kInvalidArgument,
               missing, " is not set although only ", environment.local_size, " of ",
               environment.size, " ranks are on this host: set it to rank 0's address");
    if (!port) {
      environment.master_port = derive_port();
    }
  }

  /// The same on every rank of a job and most likely different from another job's; below the
  /// range that Linux hands out by itself.
  std::uint16_t derive_port() const {
    std::string identity = protocol_.source;
    for (const char* name : {protocol_.job, "SLURM_STEP_ID", "PMIX_NAMESPACE", "USER"}) {
      identity += "|" + lookup_(name).value_or("");
    }
    std::uint32_t hash = 2166136261U;
    for (const char letter : identity) {
      hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619U;
    }
    constexpr std::uint32_t kFirst = 20000;
    constexpr std::uint32_t kCount = 12000;
    return static_cast<std::uint16_t>(kFirst + hash % kCount);
  }

  const Lookup& lookup_;
  const Protocol& protocol_;
};

/// RANK and WORLD_SIZE that a shell or a script has left behind would make many worlds of one job:
/// no launcher starts more processes than the world has ranks. torchrun and `fsdp run` set theirs
/// afresh below another launcher, whose count may then be anything.
void check_leftovers(const Lookup& lookup, const RankEnvironment& environment) {
  if (lookup("TORCHELASTIC_RUN_ID") || lookup("FSDP_LAUNCHER")) {
    return;
  }
  for (const Protocol* around : {&kOpenMpi, &kMpich, &kSlurm}) {
    const auto size = lookup(around->size);
    if (!size || (around == &kSlurm && !lookup("SLURM_STEP_ID"))) {
      continue;
    }
    const auto started = read_integer(around->size, *size, 1, std::numeric_limits<int>::max());
    FSDP_CHECK(started <= environment.size, ErrorCode::kInvalidArgument, "WORLD_SIZE is '",
               environment.size, "', but ", around->size, " is '", *size, "': ", around->source,
               " has started more processes than that. If RANK and WORLD_SIZE are left over from "
               "another job, unset them");
  }
}

}  // namespace

RankEnvironment read_rank_environment(const Lookup& lookup) {
  for (const Protocol* protocol : {&kTorchrun, &kOpenMpi, &kMpich}) {
    if (lookup(protocol->rank) || lookup(protocol->size)) {
      const RankEnvironment environment = Reader(lookup, *protocol).read();
      if (protocol == &kTorchrun) {
        check_leftovers(lookup, environment);
      }
      return environment;
    }
  }
  // Outside a step, a job's variables describe the allocation and every process would be rank 0.
  if (lookup("SLURM_STEP_ID") && lookup(kSlurm.rank)) {
    return Reader(lookup, kSlurm).read();
  }
  return {};
}

RankEnvironment read_rank_environment() {
  return read_rank_environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace fsdp::base
