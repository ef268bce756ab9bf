// SPDX-License-Identifier: Apache-2.0
#include "launch/report.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <map>
#include <string_view>

namespace fsdp::launch::detail {
namespace {

constexpr std::size_t kReportLines = 20;
constexpr std::size_t kMostOtherLines = 7;

std::string signal_text(int signal) {
  return "signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

std::string describe(const RankEnd& end) {
  if (end.is_left_over) {
    return "could not be killed";
  }
  return end.signal != 0 ? "died of " + signal_text(end.signal)
                         : "exited with code " + std::to_string(end.exit_code);
}

/// "rank 3", or "ranks 0-2, 5".
std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) {
      text += "-" + std::to_string(ranks[last]);
    }
    i = last + 1;
  }
  return text;
}

bool says(const RankEnd& end, std::string_view words) {
  return std::ranges::any_of(end.last_lines, [words](const std::string& line) {
    return line.find(words) != std::string::npos;
  });
}

bool loses_a_peer(const RankEnd& end) {
  return says(end, "[peer failed]") || says(end, "Connection closed by peer") ||
         says(end, "Connection reset by peer");
}

/// Not by the launcher's signals, nor with the code that a shell makes of them.
bool ended_by_itself(const RankEnd& end) {
  constexpr std::array kStops{SIGTERM, SIGKILL, SIGINT, SIGHUP};
  return end.signal == 0 && !end.is_left_over &&
         std::ranges::none_of(kStops, [&](int stop) { return end.exit_code == 128 + stop; });
}

/// Programs that are told to stop end with codes of their own as well; those of an exception, of
/// Python's and of this library's errors say why.
bool tells_an_error(const RankEnd& end) {
  return says(end, "what():") || says(end, "rror") || says(end, "terminate called") ||
         says(end, "fsdp: [");
}

/// The words of the library's errors: "first failure: rank 3: ...".
bool is_named_by_a_victim(int rank, const std::vector<RankEnd>& ends) {
  const std::string words = "first failure: rank " + std::to_string(rank) + ":";
  return std::ranges::any_of(ends, [&](const RankEnd& end) {
    return !end.was_asked_to_stop && end.rank != rank && says(end, words);
  });
}

/// A rank whose program ended well before the others were done, as `victim` says; none when no such
/// rank has ended with code 0.
std::optional<int> who_left_early(const RankEnd& victim, const std::vector<RankEnd>& ends) {
  for (const RankEnd& end : ends) {
    if (end.exit_code == 0 && !end.was_asked_to_stop &&
        says(victim, "rank " + std::to_string(end.rank) + " has left the job early")) {
      return end.rank;
    }
  }
  return std::nullopt;
}

/// The others in the order of their ranks; those that ended alike share a line when there are many.
std::vector<std::string> describe_others(const std::vector<RankEnd>& ends,
                                         std::optional<std::size_t> first, int stopped_by) {
  std::map<int, std::string> by_rank;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    if (i == first) {
      continue;
    }
    const RankEnd& end = ends[i];
    std::string text = describe(end);
    if (end.was_asked_to_stop && stopped_by == 0 && first) {
      text += ", told to stop after rank " + std::to_string(ends[*first].rank) + " failed";
    } else if (end.was_asked_to_stop) {
      text += ", told to stop";
    } else if (end.exit_code != 0 && names_another_cause(end)) {
      text += ", naming another rank's failure";
    }
    by_rank[end.rank] = text;
  }
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& entry : by_rank) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& seen) { return seen.first == entry.second; });
    if (group == groups.end() || by_rank.size() <= kMostOtherLines) {
      group = groups.insert(groups.end(), {entry.second, {}});
    }
    group->second.push_back(entry.first);
  }
  std::vector<std::string> lines;
  lines.reserve(groups.size());
  for (const auto& [text, ranks] : groups) {
    lines.push_back("fsdp run: " + describe_ranks(ranks) + " " + text + "\n");
  }
  return lines;
}

std::string describe_first(const RankEnd& end, std::optional<int> left_early, std::size_t lines) {
  std::string text =
      "fsdp run: rank " + std::to_string(end.rank) + " " + describe(end) + ", the first to fail";
  if (left_early) {
    text +=
        ", because rank " + std::to_string(*left_early) + " had left the job early, with code 0";
  }
  const std::size_t shown = std::min(lines, end.last_lines.size());
  text += shown == 0 ? "\n" : "; its last lines:\n";
  for (auto line = end.last_lines.end() - static_cast<std::ptrdiff_t>(shown);
       line != end.last_lines.end(); ++line) {
    text += "  | " + *line + "\n";
  }
  return text;
}

}  // namespace

bool names_another_cause(const RankEnd& end) {
  return loses_a_peer(end) || says(end, "[time-out]");
}

std::optional<std::size_t> find_first_failure(const std::vector<RankEnd>& ends) {
  const bool has_victim = std::ranges::any_of(
      ends, [](const RankEnd& end) { return !end.was_asked_to_stop && loses_a_peer(end); });
  std::optional<std::size_t> first;
  int best = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const RankEnd& end = ends[i];
    if (end.exit_code == 0) {
      continue;
    }
    int weight = 1;
    if (!end.was_asked_to_stop) {
      weight = names_another_cause(end) ? 2 : 5;
    } else if (is_named_by_a_victim(end.rank, ends)) {
      weight = 4;
    } else if (has_victim && ended_by_itself(end) && tells_an_error(end) &&
               !names_another_cause(end)) {
      weight = 3;
    }
    if (weight > best) {
      best = weight;
      first = i;
    }
  }
  return first;
}

std::string describe_ends(const std::vector<RankEnd>& ends, int stopped_by) {
  std::optional<std::size_t> first = find_first_failure(ends);
  if (stopped_by != 0 && first && ends[*first].was_asked_to_stop) {
    first.reset();  // the rank did as it was told
  }
  if (!first && stopped_by == 0) {
    return "";
  }
  const std::vector<std::string> others = describe_others(ends, first, stopped_by);
  const std::size_t taken = 1 + others.size();
  std::string text;
  if (stopped_by != 0) {
    text += "fsdp run: stopped by " + signal_text(stopped_by) + "\n";
  }
  if (stopped_by == SIGPIPE && !first) {
    return text;  // the reader has seen enough
  }
  if (first) {
    text += describe_first(ends[*first], who_left_early(ends[*first], ends),
                           kReportLines - std::min(kReportLines - 1, taken));
  }
  for (const std::string& line : others) {
    text += line;
  }
  return text;
}

}  // namespace fsdp::launch::detail
