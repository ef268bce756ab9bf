// SPDX-License-Identifier: Apache-2.0
#include "own_ranks.hpp"

#include "places.hpp"

namespace fsdp::apps {

launch::LaunchOptions own_ranks(const Arguments& arguments, int ranks) {
  launch::LaunchOptions options;
  options.ranks = ranks;
  options.command = {program_path()};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  return options;
}

}  // namespace fsdp::apps
