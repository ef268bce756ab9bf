// SPDX-License-Identifier: Apache-2.0
#include "comm/device/rank_device.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/version.h>

#include <cstdlib>
#include <exception>
#include <optional>

#include "fsdp/base/error.hpp"
#include "fsdp/comm/transports.hpp"

namespace fsdp::comm {
namespace detail {
namespace {

constexpr const char* kCpuWord = "cpu";
constexpr const char* kAutoWord = "auto";
constexpr c10::DeviceType kAccelerators[] = {c10::DeviceType::CUDA, c10::DeviceType::XPU,
                                             c10::DeviceType::PrivateUse1};

bool is_built_for(c10::DeviceType type) { return c10::impl::hasDeviceGuardImpl(type); }

int count_of(c10::DeviceType type) {
  return is_built_for(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

std::string name_of(c10::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

std::string what_is_missing(c10::DeviceType type) {
  if (!is_built_for(type)) {
    return "this LibTorch, " + std::string(TORCH_VERSION) + ", is built without " + name_of(type) +
           ": build fsdp for one that has it (for CUDA: ./dev build cuda)";
  }
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return "no device of kind " + name_of(type) + " was found" +
         (type == c10::DeviceType::CUDA && visible != nullptr
              ? ": CUDA_VISIBLE_DEVICES is '" + std::string(visible) + "'"
              : ": is its driver running (for CUDA, what does nvidia-smi say)?");
}

std::optional<c10::Device> parse(const std::string& word) {
  try {
    const c10::Device device(word);
    return device.is_cpu() || device.is_meta() ? std::nullopt : std::optional(device);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

int index_for(c10::Device wish, int count, const base::RankEnvironment& environment,
              bool may_share) {
  const std::string have = std::to_string(count) + " of kind " + name_of(wish.type()) +
                           (count == 1 ? " is" : " are") + " visible to rank " +
                           std::to_string(environment.rank);
  if (wish.has_index()) {
    FSDP_CHECK(wish.index() < count, ErrorCode::kInvalidArgument, "device ", wish.str(),
               " is not there: ", have, ", numbered from 0");
    return wish.index();
  }
  if (count == 1) {
    return 0;
  }
  if (may_share) {
    return environment.local_rank % count;
  }
  FSDP_CHECK(environment.local_rank < count, ErrorCode::kInvalidArgument, "rank ", environment.rank,
             " is the ", environment.local_rank + 1, ". of its host, but ", have,
             ": start at most one rank for each, or let ranks share them over transport staged");
  return environment.local_rank;
}

}  // namespace

RankDevice choose_device(const std::string& word, const base::RankEnvironment& environment,
                         bool may_share) {
  check_device_word(word);
  if (word == kCpuWord) {
    return {};
  }
  c10::Device wish = c10::kCPU;
  if (word == kAutoWord) {
    for (const c10::DeviceType type : kAccelerators) {
      if (count_of(type) > 0) {
        wish = c10::Device(type);
        break;
      }
    }
    if (wish.is_cpu()) {
      const bool could = is_built_for(c10::DeviceType::CUDA);
      return {.note =
                  could ? what_is_missing(c10::DeviceType::CUDA) + " Computing on the CPU" : ""};
    }
  } else {
    wish = *parse(word);
  }
  const int count = count_of(wish.type());
  FSDP_CHECK(count > 0, ErrorCode::kUnsupported, "device ", word, ": ",
             what_is_missing(wish.type()));
  const int index = index_for(wish, count, environment, may_share);
  return {.device = c10::Device(wish.type(), static_cast<c10::DeviceIndex>(index))};
}

}  // namespace detail

void check_device_word(const std::string& word) {
  FSDP_CHECK(word == detail::kCpuWord || word == detail::kAutoWord || detail::parse(word),
             ErrorCode::kInvalidArgument, "device is '", word,
             "', must be auto, cpu, cuda, cuda:N, or another device that LibTorch knows");
}

void check_device(const std::string& word) {
  // Which of several, each rank finds out for itself.
  detail::choose_device(word, {}, /*may_share=*/true);
}

}  // namespace fsdp::comm
