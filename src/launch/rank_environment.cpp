// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_environment.hpp"

#include <algorithm>
#include <map>
#include <thread>

extern char** environ;

namespace fsdp::launch::detail {
namespace {

std::map<std::string, std::string> own_variables() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    variables[text.substr(0, equals)] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  return variables;
}

}  // namespace

std::vector<std::string> make_environment(const LaunchOptions& options, int rank,
                                          std::uint16_t port) {
  std::map<std::string, std::string> variables = own_variables();
  for (const char* stale : {"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"}) {
    variables.erase(stale);
  }
  variables["FSDP_LAUNCHER"] = "fsdp";
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(options.ranks);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (options.threads > 0) {
    variables["OMP_NUM_THREADS"] = std::to_string(options.threads);
  } else {
    variables.try_emplace("OMP_NUM_THREADS", std::to_string(std::max(1, cores / options.ranks)));
  }
  for (const auto& [name, value] : options.environment) {
    variables[name] = value;
  }
  std::vector<std::string> entries;
  entries.reserve(variables.size());
  for (const auto& [name, value] : variables) {
    entries.emplace_back(name).append("=").append(value);
  }
  return entries;
}

}  // namespace fsdp::launch::detail
