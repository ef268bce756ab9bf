// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/weights.hpp"

#include <c10/core/GradMode.h>

#include <map>
#include <vector>

#include "checkpoint/read_matches.hpp"
#include "checkpoint/together.hpp"
#include "fsdp/archive/weights.hpp"
#include "fsdp/base/error.hpp"

namespace fsdp::checkpoint {
namespace {

/// A source's tensors under the module's names.
class Renamed {
 public:
  Renamed(archive::WeightSource source, const NameOf& name_of, const std::string& path)
      : source_(std::move(source)) {
    for (const archive::Tensor& tensor : source_.tensors()) {
      const auto name = name_of ? name_of(tensor.name) : std::optional(tensor.name);
      if (!name) {
        continue;
      }
      FSDP_CHECK(stored_.emplace(*name, &tensor).second, ErrorCode::kCorrupt, "'", path, "' has '",
                 *name, "' twice, the second time as '", tensor.name, "'");
      index_.tensors.push_back(tensor);
      index_.tensors.back().name = *name;
    }
    if (!name_of) {
      index_.aliases = source_.aliases();
    }
  }

  const archive::Index& index() const { return index_; }
  void read(const archive::Tensor& tensor, std::int64_t offset, std::int64_t bytes,
            void* dst) const {
    source_.read(*stored_.at(tensor.name), offset, bytes, dst);
  }
  void check_sum(const archive::Tensor& tensor) const {
    source_.check_sum(*stored_.at(tensor.name));
  }
  void will_read(const archive::Tensor& tensor, std::int64_t offset, std::int64_t bytes) const {
    source_.will_read(*stored_.at(tensor.name), offset, bytes);
  }

 private:
  archive::WeightSource source_;
  archive::Index index_;
  std::map<std::string, const archive::Tensor*> stored_;
};

archive::WeightSource open(const std::string& path, const std::string& adapter) {
  constexpr auto kSums = archive::SumCheck::kByCaller;
  return adapter.empty() ? archive::WeightSource(path, kSums)
                         : archive::WeightSource::with_adapter(path, adapter, kSums);
}

/// Compares the sums of this rank's share of the tensors, whole ones: a rank's own parts of all of
/// them would not do where adapters are added.
void check_sums(const World& world, const Renamed& source,
                const std::vector<detail::Match>& matches) {
  const auto size = static_cast<std::size_t>(world.size());
  for (auto i = static_cast<std::size_t>(world.rank()); i < matches.size(); i += size) {
    source.check_sum(*matches[i].stored);
  }
}

}  // namespace

LoadReport load_weights(const std::string& path, Sharded& sharded,
                        const LoadWeightsOptions& options) {
  const c10::NoGradGuard no_grad;
  const World world = sharded.world();
  LoadReport report{.path = path};
  std::optional<Renamed> source;
  std::vector<detail::Item> items;
  std::vector<detail::Match> matches;
  detail::together(world, "weights: open", [&] {
    source.emplace(open(path, options.adapter), options.name_of, path);
    items = detail::items_of(sharded, nullptr);
    matches = detail::match(items, source->index(), false, report);
    if (options.strict) {
      detail::require_all(report);
    }
  });
  // Before anything is written: damaged weights leave those that are here as they are.
  detail::together(world, "weights: sums", [&] { check_sums(world, *source, matches); });
  detail::announce_writes(sharded);
  detail::together(world, "weights: read", [&] {
    detail::read_matches(detail::bytes_of(*source), matches, /*sums=*/false);
  });
  report.entries = std::ssize(matches);
  return report;
}

}  // namespace fsdp::checkpoint
